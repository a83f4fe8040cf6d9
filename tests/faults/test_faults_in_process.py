"""Each planned fault over real sockets in one process: the run ends, with the sequential bits."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agileml.checkpoints.checkpoint import Check, survey
from agileml.checkpoints.opening import open_store
from agileml.core.protocol.plan import Strike
from agileml.driver.work_table import WorkTable
from agileml.events.run import (
    CheckpointSaved,
    ClockDone,
    CutCommitted,
    FaultFired,
    MachineLost,
    MembershipChanged,
    PlanFinished,
    PlanFired,
    Work,
    WorkDone,
)
from agileml.events.schema import RunEvent
from agileml.events.terms import Cause, Fault
from agileml.process.head import HeadState
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import MF, MLR, FaultRig, Rollback, job, lasting, reference_of

TWO_RELIABLE = {"reliable": 2, "transient": 4, "max": 8}


@pytest.mark.parametrize(
    "base", [pytest.param(MF, id="mf"), pytest.param(MLR, id="mlr", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "fault",
    [
        {"kill": 1},
        {"kill_many": "all"},
        {"short_notice": 1, "warning_s": 0.0},
        {"short_notice": "all", "warning_s": 0.0},
        {"cut": 1, "seconds": 0.3},
        {"slow": 1, "factor": 10.0, "seconds": 0.5},
        {"disk_full": True, "seconds": 0.3},
        {"kill_controller": True},
    ],
    ids=lambda fault: next(iter(fault)) + "-" + str(next(iter(fault.values()))),
)
def test_a_fault_does_not_change_a_bit(
    base: Mapping[str, Any], fault: dict[str, Any], tmp_path: Path
) -> None:
    saved = {"checkpoint": {"path": str(tmp_path / "saved"), "every_s": 0.02}} if "disk_full" in fault else {}
    values = job(base, clocks=26, plan=[{"at_clock": 10, **fault}], **saved)
    ran = FaultRig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    assert [type(event) for event in ran.of(PlanFired | PlanFinished)][:2] == [PlanFired, PlanFinished]
    committed = 0
    for event in ran.of(CutCommitted | MembershipChanged):
        if isinstance(event, CutCommitted):
            committed = event.clock
        else:
            assert event.base == committed if event.rolled_back else not event.redone, event


class Paces:
    """Collects what machines spend by window of clocks, until all have told of some clocks at m1's new speed."""

    def __init__(self) -> None:
        self.changed: int | None = None  # the clock that m1 was at when it heard of the change
        self._work = WorkTable()
        self._windows: dict[tuple[int, int], dict[str, Work]] = {}  # by first clock and end

    def __call__(self, rig: FaultRig, state: HeadState) -> None:
        for machine, worked in state.worked:
            self._work.add(machine, worked.rows)
        for done in self._work.take():
            assert isinstance(done, WorkDone)
            self._windows.setdefault((done.clock - done.clocks, done.clock), {}).update(done.by_machine)
        if self.changed is None and any(isinstance(each.event, FaultFired) for each in state.events):
            self.changed = rig.machines["m1"].node.worker.clock
        if self.changed is not None and self.spent("m0", self.changed + 1)[0] >= 4:
            rig.ask_to_stop()

    def spent(self, machine: str, first: int, end: int = 1 << 30) -> tuple[int, Work]:
        """The clocks from `first` to before `end` of which both machines have told, and what one spent in them."""
        told = {
            window: work
            for window, work in self._windows.items()
            if first <= window[0] and window[1] <= end and len(work) == 2
        }
        total = Work(0, 0.0, 0.0)
        for work in told.values():
            total += work[machine]
        return sum(end - first for first, end in told), total


def test_a_machine_keeps_its_pace_and_changes_it_at_the_planned_clock(tmp_path: Path) -> None:
    values = job(
        MLR,
        clocks=1000,
        stage=1,
        machines={"reliable": 1, "transient": 1, "max": 2},
        balance="static",
        pace={"unit_s": 0.005, "speeds": {"transient": 0.5}},
        plan=[{"at_clock": 6, "speed": 0.25, "machine": "m1"}],
    )
    paces = Paces()
    ran = FaultRig(values, tmp_path, paces).finish()
    assert ran.sha256 == reference_of(ran, values)
    assert paces.changed is not None and paces.changed >= 5  # that clock, the sixth, is done
    # 4 units of 5 ms at half the speed, then at an eighth; a machine may make up for at most 50 ms of being late.
    clocks, before = paces.spent("m1", 0, 6)
    assert (clocks, before.units) == (6, 6 * 4)
    assert before.compute_s >= 6 * 0.040 - 0.05
    clocks, after = paces.spent("m1", paces.changed + 1)
    assert clocks >= 4 and after.units == clocks * 4
    assert after.compute_s >= clocks * 0.160 - 0.05
    # m0 waited for it.
    assert paces.spent("m0", paces.changed + 1)[1].wait_s >= 0.1


@pytest.mark.parametrize("stage", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_one_of_two_reliable_machines_dies(stage: int, tmp_path: Path) -> None:
    plan = [{"at_clock": 8, "kill_reliable": 1}]
    values = job(MLR, clocks=16, machines=TWO_RELIABLE, stage=stage, plan=plan)
    ran = FaultRig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    after = ran.of(MembershipChanged)[-1]
    assert after.reliable == 1
    if stage == 1:  # what it served and backed up is nowhere: all over again
        assert after.rolled_back and after.base == 0
        # The cut at clock 4 may be committed by then or not: one of its two owners is gone with its backups.
        what = "(of the committed cut are lost|are lost with their owners)"
        assert re.search(rf"; partitions \[.+\] {what}: back to the start;", after.reason)
    else:  # the actives make its backups again
        assert not after.rolled_back and after.redone == 0


def has(state: HeadState, kind: type[RunEvent]) -> bool:
    return any(isinstance(each.event, kind) for each in state.events)


def test_in_stage_1_everyone_goes_back_to_the_checkpoint(tmp_path: Path) -> None:
    place = {"path": str(tmp_path / "checkpoints"), "every_s": 0.05}
    values = lasting(MLR, machines=TWO_RELIABLE, stage=1, checkpoint=place)
    rollback = Rollback()

    def watch(rig: FaultRig, state: HeadState) -> None:
        if rollback.is_made_good(state):
            rig.ask_to_stop()
        if not rig.killed and has(state, CheckpointSaved):
            rig.kill("m1")

    ran = FaultRig(values, tmp_path, watch).finish()
    assert ran.sha256 == reference_of(ran, values)
    after = ran.of(MembershipChanged)[-1]
    assert after.rolled_back and after.base in [saved.clock for saved in ran.of(CheckpointSaved)]
    assert "back to the checkpoint at clock" in after.reason


@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.slow) for n in range(3)])
def test_a_reliable_machine_dies_while_checkpoints_are_written(seed: int, tmp_path: Path) -> None:
    values = job(
        MF,
        clocks=120,
        seed=seed,
        machines=TWO_RELIABLE,
        stage=2,
        checkpoint={"path": str(tmp_path / "checkpoints"), "every_s": 0.02, "keep": 1},
        plan=[{"at_clock": 30 + seed, "kill_reliable": 1}, {"at_clock": 60, "kill_controller": True}],
    )
    ran = FaultRig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    done = [note.clock for note in ran.of(CheckpointSaved)]
    assert done[-1] == 120  # the last one, at the end


def test_a_new_controller_knows_the_checkpoints_of_the_one_before(tmp_path: Path) -> None:
    place = {"path": str(tmp_path / "checkpoints"), "every_s": 0.05}
    values = lasting(MLR, machines=TWO_RELIABLE, stage=1, checkpoint=place)
    controllers = [1]
    rollback = Rollback()

    def watch(rig: FaultRig, state: HeadState) -> None:
        if rollback.is_made_good(state):
            rig.ask_to_stop()
        if controllers == [1] and has(state, CheckpointSaved):
            for name in ("m0", "m1"):  # the next controller gets no checkpoint of its own
                rig.machines[name].suffer(Strike(Fault.DISK_FULL, (name,), 3600.0, 1.0))
            rig.kill_controller()
            controllers.append(2)
        elif controllers == [1, 2] and has(state, MembershipChanged):  # its first one, the restart
            rig.kill("m1")
            controllers.append(3)

    ran = FaultRig(values, tmp_path, watch).finish()
    assert ran.sha256 == reference_of(ran, values)
    (after,) = [view for view in ran.of(MembershipChanged) if view.rolled_back]
    assert Cause.RESTART in [view.trigger.cause for view in ran.of(MembershipChanged)]
    assert "back to the checkpoint at clock" in after.reason
    whole = [one.name.clock for one in survey(open_store(place["path"]), Check.CHECKSUMS) if not one.problem]
    assert after.base in whole


def test_a_wall_clock_that_is_set_back_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = time.time

    def set_back(rig: FaultRig, state: HeadState) -> None:
        if state.clock > 10:
            monkeypatch.setattr(time, "time", lambda: right() - 3600.0)

    values = job(MLR, plan=[{"at_clock": 20, "kill": 1}])
    ran = FaultRig(values, tmp_path, set_back).finish()
    assert ran.sha256 == reference(values)
    # Machines date their clocks.
    at_s = [each.at_s for each in ran.events if not isinstance(each.event, ClockDone)]
    assert at_s == sorted(at_s)


def test_a_slow_machine_is_said_and_stays(tmp_path: Path) -> None:
    values = job(MLR, clocks=20, plan=[{"at_clock": 8, "slow": 1, "factor": 20.0, "seconds": 0.5}])
    ran = FaultRig(values, tmp_path).finish()
    (fault,) = ran.of(FaultFired)
    assert fault.fault == "slow" and len(fault.machines) == 1
    assert not ran.of(MachineLost)
