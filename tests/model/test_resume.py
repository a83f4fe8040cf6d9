"""The whole run dies at any moment, head and all; what is left is the store of checkpoints. Others go on from there.

The next run has other machines, another stage, another network and faults of its own, and may die in its turn. The end
has the sequential bits, and every unit counted once, as if nothing had happened.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from agileml.core.async_stages.replay import stages_in
from agileml.core.protocol.record import Record
from agileml.events.run import MembershipChanged, StagesArranged, StepsLogged
from tests.model.run import MODES, PLAIN, SCHEDULES
from tests.model.schedule import Schedule, make_schedule
from tests.model.simulator import Simulation
from tests.model.toy import ASYNC, ELASTIC

RUNS = 3  # of one job, at most


class ResumedSimulation(Simulation):
    """Goes on from the newest whole checkpoint of `before`, if there is one; dies at `dies_s`."""

    def __init__(self, schedule: Schedule, before: Simulation | None, dies_s: float) -> None:
        super().__init__(schedule)
        self.checkpoint_every_s = self.rng.choice([0.3, 1.0])
        self.dies_s = dies_s
        if before is not None:
            self.saved, self.sealed = before.saved, before.sealed
        self.claimed = max((name.epoch for name, _ in self.saved), default=0)
        self.newest = max((checkpoint.name for checkpoint in self.sealed), default=None)
        if before is not None and self.newest is not None:
            self.remember(before, self.newest.clock)

    def remember(self, before: Simulation, clocks: int) -> None:
        """What the log of `before` says of its first clocks, where the bits follow from the log."""
        if self.schedule.toy_mode in ASYNC:
            told = stages_in(before.all_told_stages(), clocks)
            self.stages_before = [StagesArranged(0, each.clock, each.ends, each.overlapping) for each in told]
        if self.schedule.toy_mode in ELASTIC:
            for partition, taken in enumerate(before.steps(clocks)):
                positions = tuple(step.position for step in taken)
                reads = tuple(step.reads for step in taken)
                self.steps_before.append(StepsLogged(partition, 0, 0, positions, reads))

    def newest_record(self) -> Record | None:
        return super().newest_record() or Record(0, "", claimed=self.claimed)  # as `highest_epoch` says

    @property
    def is_over(self) -> bool:
        return super().is_over or self.now_s >= self.dies_s

    def check_end(self) -> None:
        if self.finished is not None:
            super().check_end()


def schedules(seed: int, mode: str) -> list[Schedule]:
    """One job on different machines."""
    first, *others = (make_schedule(1000 * seed + index, mode) for index in range(RUNS))
    assert isinstance(first, Schedule)
    job = {name: getattr(first, name) for name in ("algorithm", "slices", "parts", "partitions")}
    job |= {"clocks": first.clocks + 8, "cut_every_s": 0.1, "cut_clocks": 3}
    return [replace(schedule, **job, plan=(), gentle=False) for schedule in (first, *others)]


def run_job(seed: int, mode: str) -> Counter[str]:
    """Run a job through its deaths to its end."""
    draw = random.Random(f"resume/{seed}/{mode}")
    seen: Counter[str] = Counter()
    before: ResumedSimulation | None = None
    for index, schedule in enumerate(schedules(seed, mode)):
        dies_s = draw.uniform(0.5, 6.0) if index < RUNS - 1 else float("inf")
        before = ResumedSimulation(schedule, before, dies_s)
        before.run()
        changes = [event for event in before.events if isinstance(event, MembershipChanged)]
        if before.newest is not None:
            seen["resumed"] += 1
            assert not changes or changes[0].base == before.newest.clock
            assert not changes or not changes[0].rolled_back
        if before.is_lost or before.finished is not None:
            seen["finished"] += before.finished is not None
            break
        seen["died"] += 1
    return seen


def run_jobs(seeds: Iterable[int], mode: str) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += run_job(seed, mode)
        except Exception as error:
            raise AssertionError(f"job {seed} in mode {mode}") from error
    print(f"\n{mode}: {dict(seen)}")
    assert all(seen[what] for what in ("died", "resumed", "finished")), seen


@pytest.mark.parametrize("mode", PLAIN)
def test_a_job_goes_on_after_the_death_of_everything(mode: str) -> None:
    run_jobs(range(5 if mode in ("dense", "batches") else 3), mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_many_jobs_go_on_after_the_death_of_everything(mode: str) -> None:
    run_jobs(range(20, 20 + max(SCHEDULES * 3 // 50, 10)), mode)
