"""A machine that cannot connect to another one, over real sockets: the run goes on without one of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agileml.events.run import MachineLost
from agileml.events.terms import Loss
from agileml.process.head import HeadState
from tests.faults.fault_rig import MLR, FaultRig, lasting, reference_of


def test_the_run_goes_on_without_a_machine_that_does_not_reach_another(tmp_path: Path) -> None:
    values = lasting(MLR)
    astray: list[str] = []

    def watch(rig: FaultRig, state: HeadState) -> None:
        if state.clock >= 2 and not astray:
            astray.append("m1")
            there = rig.machines["m2"].address
            rig.machines["m1"].meet(replace(there, ipc=there.ipc + "-nowhere"))
        if any(isinstance(each.event, MachineLost) for each in state.events):
            rig.ask_to_stop()

    ran = FaultRig(values, tmp_path, watch).finish()
    assert ran.sha256 == reference_of(ran, values)
    (lost,) = ran.of(MachineLost)
    assert lost.loss is Loss.CUT_OFF
    assert "m1 and m2 have not reached each other" in lost.detail
