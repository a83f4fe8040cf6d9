"""Machines that foresee their own speed in whole runs: forecasts reach the planner, and no bit changes."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from agileml.process.head import HeadState
from tests.faults.fault_rig import MLR, FaultRig, job, reference_of

PLAN = [{"at_clock": 20, "kill": 1}, {"at_clock": 40, "join": 1}]


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["servers", "allreduce"])
def test_machines_that_foresee_their_speed(exchange: str, tmp_path: Path) -> None:
    values = job(
        MLR,
        balance={"kind": "lbbsp", "predictor": "narx"},
        exchange=exchange,
        deterministic=exchange == "servers",
        plan=PLAN,
        units_per_slice=8,
        pace={"unit_s": 0.0002, "speeds": {"m0": 0.5}},
        clocks=5000,
    )
    foreseen: dict[str, float] = {}
    trained: set[int] = set()

    def watch(rig: FaultRig, state: HeadState) -> None:
        for name, machine in rig.machines.items():
            own = machine._own_forecast
            assert own is not None
            foreseen[name] = own.forecast.expected
            if own._training.pid is not None:
                trained.add(own._training.pid)
        if state.clock >= 520 and trained:
            rig.ask_to_stop()

    ran = FaultRig(values, tmp_path, watch).finish()
    assert ran.clocks < 5000, "no net was trained"
    if exchange == "servers":
        assert ran.sha256 == reference_of(ran, values)
    assert len(foreseen) == 4
    assert foreseen["m0"] > 0
    assert not any(psutil.pid_exists(pid) for pid in trained)
