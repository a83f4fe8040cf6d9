"""Each planned fault over real sockets in one process: the run ends, with the sequential bits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agileml.driver.work_table import WorkTable
from agileml.events.run import (
    CheckpointSaved,
    ClockDone,
    FaultFired,
    MachineLost,
    MembershipChanged,
    PlanFinished,
    PlanFired,
)
from agileml.process.head import HeadState
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import MF, MLR, FaultRig, job

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
    values = job(base, plan=[{"at_clock": 15, **fault}])
    ran = FaultRig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    assert [type(event) for event in ran.of(PlanFired | PlanFinished)][:2] == [PlanFired, PlanFinished]
    for view in ran.of(MembershipChanged):
        assert view.redone <= 4 + 1, view  # cuts.max_clocks, and the clock that is open


def test_a_machine_keeps_its_pace_and_changes_it_at_the_planned_clock(tmp_path: Path) -> None:
    values = job(
        MLR,
        clocks=18,  # the last ones end before the rows of their work have come
        stage=1,
        machines={"reliable": 1, "transient": 1, "max": 2},
        pace={"unit_s": 0.005, "speeds": {"transient": 0.5}},
        plan=[{"at_clock": 6, "speed": 0.25, "machine": "m1"}],
    )
    work = WorkTable()

    def watch(rig: FaultRig, state: HeadState) -> None:
        for machine, worked in state.worked:
            work.add(machine, worked.rows)

    assert FaultRig(values, tmp_path, watch).finish().sha256 == reference(values)
    windows = {done.clock: done.by_machine for done in work.take()}
    assert all(windows[clock]["m1"].units == 4 for clock in range(1, 12)), windows

    def computed_s(first: int, last: int) -> float:
        return sum(windows[clock]["m1"].compute_s for clock in range(first, last + 1))

    # 4 units of 5 ms at half the speed, then at an eighth (the clock of the change has begun before it comes);
    # a machine may make up for at most 50 ms of being late.
    assert computed_s(1, 6) >= 6 * 0.040 - 0.05
    assert computed_s(8, 11) >= 4 * 0.160 - 0.05
    # m0 waited for it.
    assert sum(windows[clock]["m0"].wait_s for clock in range(8, 12)) >= 0.1


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_one_of_two_reliable_machines_dies(stage: int, tmp_path: Path) -> None:
    values = job(MLR, machines=TWO_RELIABLE, stage=stage, plan=[{"at_clock": 15, "kill_reliable": 1}])
    ran = FaultRig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    after = ran.of(MembershipChanged)[-1]
    assert after.reliable == 1
    if stage == 1:  # what it served and backed up is nowhere: all over again
        assert after.rolled_back and after.base == 0
        assert "lost with their owners and backups: back to the start" in after.reason
    else:  # the actives make its backups again
        assert not after.rolled_back and after.redone == 0


def test_in_stage_1_everyone_goes_back_to_the_checkpoint(tmp_path: Path) -> None:
    values = job(
        MLR,
        clocks=80,
        machines=TWO_RELIABLE,
        stage=1,
        checkpoint={"path": str(tmp_path / "checkpoints"), "every_s": 0.05},
        plan=[{"at_clock": 60, "kill_reliable": 1}],
    )
    ran = FaultRig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    after = ran.of(MembershipChanged)[-1]
    assert after.rolled_back and 0 < after.base <= 60
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
    values = job(
        MLR,
        clocks=80,
        machines=TWO_RELIABLE,
        stage=1,
        checkpoint={"path": str(tmp_path / "checkpoints"), "every_s": 0.1},
        plan=[{"at_clock": 60, "kill_controller": True}, {"at_clock": 61, "kill_reliable": 1}],
    )
    ran = FaultRig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    assert "back to the checkpoint at clock" in ran.of(MembershipChanged)[-1].reason


def test_a_wall_clock_that_is_set_back_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = time.time

    def set_back(rig: FaultRig, state: HeadState) -> None:
        if state.clock > 10:
            monkeypatch.setattr(time, "time", lambda: right() - 3600.0)

    values = job(MLR, clocks=60, plan=[{"at_clock": 30, "kill": 1}])
    ran = FaultRig(values, tmp_path, set_back).finish()
    assert ran.sha256 == reference(values)
    at_s = [
        each.at_s for each in ran.events if not isinstance(each.event, ClockDone)
    ]  # machines date their clocks
    assert at_s == sorted(at_s)


def test_a_slow_machine_is_said_and_stays(tmp_path: Path) -> None:
    values = job(MLR, plan=[{"at_clock": 15, "slow": 1, "factor": 20.0, "seconds": 0.5}])
    ran = FaultRig(values, tmp_path).finish()
    (fault,) = ran.of(FaultFired)
    assert fault.fault == "slow" and len(fault.machines) == 1
    assert not ran.of(MachineLost)
