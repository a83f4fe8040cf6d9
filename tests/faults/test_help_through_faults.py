"""Help changes who computes what while a clock lasts, and not a bit of the result, whatever else happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agileml.events.run import ClockDone, FaultFired, MembershipChanged
from agileml.events.terms import Fault
from agileml.process.head import HeadState
from tests.faults.fault_rig import FaultRig, job, reference_of
from tests.faults.test_shares_by_speed import JOBS

PLAN = [
    {"at_clock": 3, "slow": 1, "factor": 3, "seconds": 0.3},
    {"at_clock": 6, "join": 2},
    {"at_clock": 9, "slow": 2, "factor": 4, "seconds": 0.4},
    {"at_clock": 11, "kill": 1},
    {"at_clock": 14, "kill_controller": True},
    {"at_clock": 17, "slow": 1, "factor": 4, "seconds": 0.3},
    {"at_clock": 20, "notice": 1, "warning_s": 30},
    {"at_clock": 23, "cut": 1, "seconds": 0.3},
    {"at_clock": 25, "kill": 1},
]
PACE = {"unit_s": 0.002, "speeds": {"m0": 0.4}}


def watch(rig: FaultRig, state: HeadState) -> None:
    """Ends the run after 28 clocks or, on a busy host, when there was some help."""
    if state.clock >= 28 and units_helped(rig) > 30:
        rig.ask_to_stop()


def units_helped(rig: FaultRig) -> int:
    return sum(machine.node.spent.units_helped for machine in rig.machines.values())


@pytest.mark.parametrize(
    "name",
    ["mf-momentum", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlr-sgd", "torch-adam"))],
)
def test_one_result_with_helpers_that_die_and_machines_that_come_and_go(name: str, tmp_path: Path) -> None:
    values = job(JOBS[name], plan=PLAN, clocks=1000, pace=PACE, units_per_slice=4, helping=True)
    rig = FaultRig(values, tmp_path, watch)
    ran = rig.finish()
    assert ran.sha256 == reference_of(ran, values), ran.halted
    assert len(ran.of(MembershipChanged)) >= 5
    assert {fault.fault for fault in ran.of(FaultFired)} >= {Fault.KILL, Fault.SLOW, Fault.CUT}
    assert units_helped(rig) > 30


@pytest.mark.slow
def test_ssp_goes_through_them_too(tmp_path: Path) -> None:
    more: dict[str, Any] = {"consistency": {"kind": "ssp", "slack": 1}, "helping": True}
    values = job(JOBS["mlr-sgd"], plan=PLAN, clocks=1000, pace=PACE, units_per_slice=4, **more)
    rig = FaultRig(values, tmp_path, watch)
    ran = rig.finish()
    assert ran.tables is not None, ran.halted
    assert ran.of(ClockDone)[-1].clock >= 28
    assert units_helped(rig) > 30
