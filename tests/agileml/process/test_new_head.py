"""A controller that takes over: what it says to machines, and what it says of those that went before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agileml.core.protocol.inputs import NodeUp
from agileml.events.run import MachineLost, MachineReleased, WaitingForSilent
from agileml.events.terms import Loss, Tier
from agileml.net.events import Address
from agileml.process.head import HeadState
from agileml.process.machine import Machine
from tests.faults.fault_rig import MLR, FaultRig, job, lasting, reference_of


class NeverTold(Machine):
    """The driver's call was lost."""

    def meet(self, address: Address) -> None:
        pass


class UntoldRig(FaultRig):
    """The driver tells no machine of a new controller."""

    machine_type = NeverTold


def test_machines_that_the_driver_does_not_tell_hear_of_a_new_controller_from_itself(tmp_path: Path) -> None:
    values = job(MLR, plan=[{"at_clock": 10, "kill_controller": True}, {"at_clock": 20, "kill": 1}])
    ran = UntoldRig(values, tmp_path).finish()
    assert ran.sha256 == reference_of(ran, values)


def test_a_machine_that_speaks_to_another_controller_is_told_again_where_this_one_is(tmp_path: Path) -> None:
    """As when a controller that was replaced while it was cut off speaks to it once more."""
    values = lasting(MLR, heartbeat={"interval_s": 0.2, "timeout_s": 1.0})
    astray: list[str] = []
    clock_then = 0

    def watch(rig: FaultRig, state: HeadState) -> None:
        nonlocal clock_then
        if astray and state.clock > clock_then + 20:
            rig.ask_to_stop()
        if state.stage and not astray:
            astray.append("m1")
            clock_then = state.clock
            here = rig.head.address
            rig.machines["m1"].meet(replace(here, ipc=f"{here.ipc}-before", tcp="tcp://127.0.0.1:1"))

    ran = FaultRig(values, tmp_path, watch).finish()
    assert astray
    assert ran.sha256 == reference_of(ran, values)


def test_a_new_controller_notes_the_loss_of_members_and_not_of_machines_that_had_left(tmp_path: Path) -> None:
    values = lasting(MLR, plan=[{"at_clock": 8, "notice": 1, "warning_s": 60}])
    left: list[str] = []
    dead = "m0"

    def watch(rig: FaultRig, state: HeadState) -> None:
        nonlocal dead
        if MachineLost(dead, Loss.GONE_BEFORE, "") in [each.event for each in state.events]:
            rig.ask_to_stop()
        gone = [each.event.machine for each in state.events if isinstance(each.event, MachineReleased)]
        if not gone:
            return
        left.extend(gone)
        (dead,) = {"m1", "m2"} - set(left)
        rig.killed |= {*left, dead}
        rig.head.stop()  # first: it would see the machine go, and go on without it
        rig.machines[dead].stop()
        rig.kill_controller()
        for name in sorted(rig.killed):
            rig.head.register_gone(NodeUp(name, Tier.TRANSIENT, True), Loss.GONE_BEFORE)

    ran = FaultRig(values, tmp_path, watch).finish()
    assert len(left) == 1
    assert MachineLost(dead, Loss.GONE_BEFORE, "") in ran.of(MachineLost)
    assert not [lost for lost in ran.of(MachineLost) if lost.machine in left]
    assert ran.sha256 == reference_of(ran, values)


def test_a_reliable_machine_comes_and_the_one_in_whose_place_it_is_goes_at_once(tmp_path: Path) -> None:
    """With neither of them the controller would end the run."""
    values = lasting(MLR, stage=2)
    is_silent = is_replaced = False

    def watch(rig: FaultRig, state: HeadState) -> None:
        nonlocal is_silent, is_replaced
        if state.clock > 4 and not is_silent:
            is_silent = True
            rig.machines["m0"].stop()
        waits = any(isinstance(each.event, WaitingForSilent) for each in state.events)
        if waits and not is_replaced:
            is_replaced = True
            rig.killed.add("m0")
            rig.replace("m0")
        if MachineLost("m0", Loss.PROCESS_DIED, "") in [each.event for each in state.events]:
            rig.ask_to_stop()

    ran = FaultRig(values, tmp_path, watch).finish()
    assert is_replaced
    assert MachineLost("m0", Loss.PROCESS_DIED, "") in ran.of(MachineLost)
    assert ran.sha256 == reference_of(ran, values)
