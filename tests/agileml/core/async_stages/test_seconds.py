"""The seconds that the sums of a stage say: what its machine computed for them, without waiting, each second once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from agileml.application import Settings, Stage, StageOutput, Unit, Wire
from agileml.core.async_stages.walkers import stage_walker
from agileml.core.compute.contract import initial_values
from agileml.core.compute.cursor import Cursor
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.protocol.commands import Arrange, Compute, Computed, Crossed
from agileml.core.protocol.deal import bundles_of
from agileml.core.protocol.view import StageGroup
from agileml.core.stage.unit_ranges import unit_ranges
from agileml.core.stage.walk import Awaited, Crossings, Walk
from straggler.coverage import Units, span
from tests.model.staged_toy import StagedToy, ToyStage
from tests.model.toy import toy_job

UNITS, CLOCKS, PARTITIONS = 16, 12, 4
FORWARD_S, BACKWARD_S, WAIT_S = 1.0, 2.0, 8.0


class TimedStage(ToyStage):
    def __init__(self, toy: TimedToy, edges: Sequence[int]) -> None:
        super().__init__(toy, edges)
        self._timed = toy

    def forward(self, unit: Unit, items: float, incoming: Sequence[Wire], *, defer: bool) -> StageOutput:
        self._timed.now_s += FORWARD_S
        return super().forward(unit, items, incoming, defer=defer)

    def backward(self, unit: Unit, gradients: Sequence[Wire | None]) -> list[Wire | None]:
        self._timed.now_s += BACKWARD_S
        return super().backward(unit, gradients)


class TimedToy(StagedToy):
    """Of one machine, whose clock goes on while it computes or waits."""

    now_s = 0.0

    def stage(self, borders: Sequence[Sequence[int]], first: int, stop: int) -> Stage:
        return TimedStage(self, [edge // self.row for edge in (0, *borders[0])[first : stop + 1]])


class Machine:
    """A machine of a stage, and the seconds of the sums that it has told, without waiting."""

    def __init__(self, name: str, mode: str, own: Units, arranged: Arrange) -> None:
        _, job = toy_job(mode, "sgd", UNITS, 1, PARTITIONS, CLOCKS)
        assert job.pipeline is not None
        self.toy = TimedToy(Settings(seed=3, slices=UNITS, clocks_per_pass=2), 1, counts=False)
        start = initial_values(self.toy, self.toy.tables())
        self._blocks = [tuple(job.layout.blocks(start, p)) for p in range(PARTITIONS)]
        plan, work = self.toy.plan(PARTITIONS), UnitComputer(self.toy, job.layout, 1)
        self._walker = stage_walker(name, self.toy, plan, work, job.pipeline)
        self._bundles, self._arranged = bundles_of(job, own), arranged
        self.crossings = Crossings()
        self.crossings.arrange(arranged)
        self.told: list[tuple[int, float]] = []  # units, seconds
        self.waited_s = self._waited_s = 0.0  # in all, and in this walk since the last sums
        self._walk: Walk | None = None
        self._awaited: Awaited | None = None
        self._step = 0

    def go_on(self, machines: dict[str, Machine]) -> bool:
        """Until a message lacks, or all steps are over. True if it did anything."""
        has_done = False
        while self._walk is not None or self._step < CLOCKS + PARTITIONS:
            if self._walk is None:
                order = Compute(1, self._step, self._bundles, (), Cursor(UNITS), begins=self._step < CLOCKS)
                self._walk = self._walker.walk(
                    order, self._arranged, self._blocks.__getitem__, lambda: self.toy.now_s
                )
                self._step += 1
            answer = self.crossings.get(self._awaited) if self._awaited is not None else None
            if self._awaited is not None and answer is None:
                return has_done
            self._awaited, has_done = None, True
            self._send(answer, machines)
        return has_done

    def _send(self, answer: object, machines: dict[str, Machine]) -> None:
        assert self._walk is not None
        try:
            found = self._walk.send(answer)  # type: ignore[arg-type]
        except StopIteration:
            self._walk, self._waited_s = None, 0.0
            return
        if isinstance(found, Awaited):
            self._awaited = found
            self.toy.now_s += WAIT_S
            self.waited_s += WAIT_S
            self._waited_s += WAIT_S
        elif isinstance(found, Crossed):
            machines[found.to].crossings.deliver(found.crossing)
        else:
            assert isinstance(found, Computed)
            self.told.append((found.bundle.bit_count(), found.compute_s - self._waited_s))
            self._waited_s = 0.0

    @property
    def told_s(self) -> float:
        return sum(seconds for _, seconds in self.told)

    @property
    def computed_s(self) -> float:
        return self.toy.now_s - self.waited_s


def pipeline(mode: str, counts: Sequence[int]) -> list[Machine]:
    """The machines of stages with so many replicas, when all clocks are over."""
    edges = [number * PARTITIONS // len(counts) for number in range(len(counts) + 1)]
    groups = []
    for number, (ends, count) in enumerate(zip(pairwise(edges), counts, strict=True)):
        ranges = unit_ranges(UNITS, {f"m{number}{each}": 1.0 for each in range(count)})
        shares = tuple((name, span(*units)) for name, units in ranges.items())
        groups.append(StageGroup(*ends, shares, overlaps=count > 1 and number + 1 < len(counts)))
    arranged = Arrange(1, tuple(groups))
    machines = {name: Machine(name, mode, own, arranged) for group in groups for name, own in group.replicas}
    while any(machine.go_on(machines) for machine in machines.values()):
        pass
    return list(machines.values())


@pytest.mark.parametrize("mode", ["stash", "vertical_sync", "none"])
def test_of_bundles_of_one_clock_each_tells_its_own_seconds(mode: str) -> None:
    """Of 16 units three machines have 6, 6 and 4: two bundles, two and one."""
    *replicas, last = pipeline(mode, (3, 1))
    assert [len(machine.told) for machine in replicas] == [2 * CLOCKS, 2 * CLOCKS, CLOCKS]
    assert last.told_s == last.computed_s
    for machine in replicas:
        units = sum(units for units, _ in machine.told) / CLOCKS
        assert machine.told_s == machine.computed_s - units * FORWARD_S  # the first step has no sums


def test_with_two_versions_the_second_half_of_a_step_is_told_with_the_next_sums() -> None:
    for machine in pipeline("double_buffered", (1, 1, 1)):
        assert machine.told_s == machine.computed_s
        steady = [seconds for _, seconds in machine.told[1:-1]]
        assert steady == [UNITS * (FORWARD_S + BACKWARD_S)] * (CLOCKS - 2)
