"""Two machines that never reach each other again, in the middle of a run: it ends all the same, in every mode."""

from __future__ import annotations

import pytest

from agileml.events.run import MachineLost
from agileml.events.terms import Loss
from tests.model.fault_kinds import FOR_GOOD_S
from tests.model.run import MODES
from tests.model.schedule import make_schedule
from tests.model.simulator import Simulation

FEW = ("bsp", "ssp", "allreduce", "flush", "stash", "elastic")


def run_parted(seed: int, mode: str, *, one_way: bool) -> list[MachineLost]:
    """What was said of machines that were given up, when a reliable machine and a transient one are parted."""
    schedule = make_schedule(seed, mode, 0)
    simulation = Simulation(schedule)
    pair = [f"n{schedule.reliable - 1}", f"n{schedule.reliable}"]
    simulation.at(1.0, lambda: simulation.broken_links.part(*pair, FOR_GOOD_S, one_way=one_way))
    simulation.run()
    lost = [event for event in simulation.events if isinstance(event, MachineLost)]
    given_up = [event for event in lost if event.loss is Loss.CUT_OFF]
    assert all(event.machine in pair for event in given_up), given_up
    return given_up


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[] if mode in FEW else pytest.mark.slow) for mode in MODES]
)
def test_a_run_goes_on_without_one_of_two_machines_that_do_not_reach_each_other(mode: str) -> None:
    seeds = [seed for seed in range(12) if make_schedule(seed, mode, 0).transient][:4]
    lost = [run_parted(seed, mode, one_way=seed % 2 == 0) for seed in seeds]
    assert any(lost), "in no schedule did they need each other"
