"""A run that is told to stop, at any moment and through any faults, ends with a cut: in BSP its sequential bits."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from agileml.application import Array
from agileml.core.protocol.inputs import Stop
from agileml.core.sequential import run_sequential
from tests.model.run import SCHEDULES
from tests.model.schedule import make_schedule
from tests.model.simulator import Simulation


class StoppedSimulation(Simulation):
    """Told to stop at `stop_s`; every controller that starts later is told again, as the engine's driver does."""

    def __init__(self, seed: int, mode: str) -> None:
        super().__init__(make_schedule(seed, mode))
        draw = random.Random(f"stop/{seed}/{mode}")
        self.stop_s = draw.choice([draw.uniform(0.0, 2.0), draw.uniform(2.0, 12.0)])
        self.deadline_s = self.stop_s + draw.uniform(0.0, 3.0) if draw.random() < 0.3 else None
        self.at(self.stop_s, self.tell_all)

    def tell_all(self) -> None:
        for controller in self.controllers:
            self.tell(controller, Stop(self.deadline_s))

    def start_controller(self) -> None:
        super().start_controller()
        if self.now_s >= self.stop_s:
            self.tell(self.controllers[-1], Stop(self.deadline_s))

    def result(self) -> dict[str, Array]:
        """The blocks as `Machine.final_blocks` finds them."""
        assert self.finished is not None
        parts = []
        for partition, name in enumerate(self.finished.backup):
            held = self.nodes[name].node.backup
            cuts = [held.arrived(partition), held.cut(partition)]
            found = [cut for cut in cuts if cut is not None and cut.clock == self.finished.clock]
            assert found, (partition, name, self.finished)
            parts.append(found[0].blocks)
        return self.job.layout.whole(parts)

    def check_end(self) -> None:
        s = self.schedule
        found = self.result()
        assert self.finished is not None
        assert 0 < self.finished.clock <= s.clocks
        if s.mode in ("ssp", "asp"):
            return  # a cut holds contributions to later clocks too
        wanted = run_sequential(
            self.toy, optimizer=self.job.optimizer, clocks=self.finished.clock, parts=s.parts
        )
        np.testing.assert_array_equal(found["count"], wanted["count"])
        if s.mode in ("bsp", "dense"):
            for name in wanted:
                assert found[name].tobytes() == wanted[name].tobytes(), f"table {name} has other bits"


def stop_many(mode: str, seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        simulation = StoppedSimulation(seed, mode).run()
        if simulation.finished is not None:
            is_early = simulation.finished.clock < simulation.schedule.clocks
            seen["early" if is_early else "at the end"] += 1
            is_saved = any(
                checkpoint.name.clock == simulation.finished.clock for checkpoint in simulation.sealed
            )
            seen["with a checkpoint"] += is_saved
            seen["in a change"] += simulation.controllers[-1].controller.is_changing
        else:
            seen["lost"] += 1
    print(mode, dict(seen))
    return seen


@pytest.mark.parametrize(("mode", "seeds"), [("bsp", 12), ("dense", 6), ("sum", 5), ("ssp", 5), ("asp", 5)])
def test_a_stop_at_any_moment_ends_with_a_whole_cut(mode: str, seeds: int) -> None:
    seen = stop_many(mode, range(seeds))
    assert seen["early"] >= seeds // 3
    assert seen["with a checkpoint"]


def test_a_stop_ends_in_the_middle_of_a_change_at_its_deadline() -> None:
    """The machines have promised another epoch, and their backups answer for the committed cut all the same."""
    for mode, seed in (("bsp", 71), ("dense", 40), ("allreduce", 80)):
        assert stop_many(mode, range(seed, seed + 1))["in a change"] == 1, (mode, seed)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bsp", "dense", "sum", "ssp", "asp"])
def test_many_stops(mode: str) -> None:
    stop_many(mode, range(SCHEDULES // 5))
