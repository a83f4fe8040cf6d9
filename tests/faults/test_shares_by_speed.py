"""Shares by speed change who computes what, and not a bit of the result: deaths, joins, notices, speeds that wander."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agileml.events.run import MembershipChanged, UnitsPlanned
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import FaultRig, job

SGD = {"kind": "sgd", "learning_rate": 0.05}
MOMENTUM = {"kind": "momentum", "learning_rate": 0.001}
ADAM = {"kind": "adam", "learning_rate": 0.01}
JOBS: Mapping[str, Mapping[str, Any]] = {
    "mf-momentum": {
        "application": "mf",
        "data": {"kind": "made"},
        "model": {"mode": "gradients"},
        "optimizer": MOMENTUM,
        "clocks_per_pass": 16,
    },
    "mlr-sgd": {"application": "mlr", "data": {"kind": "digits"}, "optimizer": SGD, "clocks_per_pass": 4},
    "torch-adam": {
        "application": "torch",
        "data": {"kind": "digits", "shape": [1, 8, 8]},
        "model": {
            "module": "agileml.apps.torch.models:cnn",
            "arguments": {"size": 8, "dropout": 0.25},
            "batch_size": 64,
        },
        "optimizer": ADAM,
    },
}
PLAN = [
    {"at_clock": 4, "slow": 1, "factor": 3, "seconds": 0.3},
    {"at_clock": 7, "join": 2},
    {"at_clock": 12, "kill": 1},
    {"at_clock": 17, "slow": 1, "factor": 4, "seconds": 0.2},
    {"at_clock": 22, "notice": 1, "warning_s": 30},
]


@pytest.mark.parametrize(
    ("name", "unit_s"),  # longer than a unit takes here, so that the machines differ by what they stand for
    [
        ("mf-momentum", 0.001),
        pytest.param("mlr-sgd", 0.001, marks=pytest.mark.slow),
        pytest.param("torch-adam", 0.015, marks=pytest.mark.slow),
    ],
)
def test_one_result_for_one_process_equal_shares_and_shares_by_speed(
    name: str, unit_s: float, tmp_path: Path
) -> None:
    speeds = {"unit_s": unit_s, "speeds": {"m0": 0.25, "m2": 0.5}}
    values = job(JOBS[name], plan=PLAN, clocks=28, pace=speeds, units_per_slice=4, balance="static")
    static = FaultRig(values, tmp_path / "static").finish()
    by_speed = FaultRig(values | {"balance": "lbbsp"}, tmp_path / "by_speed").finish()
    assert static.sha256 == by_speed.sha256 == reference(values)
    assert by_speed.of(UnitsPlanned)
    assert not static.of(UnitsPlanned)
    for ran in (static, by_speed):
        assert len(ran.of(MembershipChanged)) >= 4
