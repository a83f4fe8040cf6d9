"""Applications with tables that are read by row or keep the state of a pass: the same bits through joins, notices and
deaths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agileml.events.run import MembershipChanged
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import FaultRig, job

KMEANS = {"application": "kmeans", "data": {"kind": "digits"}, "clocks_per_pass": 1}
SHOP = "tests.agileml.apps.torch.forward.shop"
JOBS = {
    "kmeans": KMEANS,
    "lda": {
        "application": "lda",
        "data": {"kind": "made", "documents": 200, "words": 100, "length": 30},
        "model": {"topics": 8},
        "clocks_per_pass": 3,
    },
    "kmeans-minibatch": {**KMEANS, "model": {"mode": "minibatch"}, "clocks_per_pass": 4},
    "embeddings": {
        "application": "torch",
        "data": {"dataset": f"{SHOP}:data"},
        "model": {"module": f"{SHOP}:Shop", "loss": "mse", "batch_size": 64, "evaluate_every": 8},
        "optimizer": {"kind": "adam", "learning_rate": 0.01, "clip_norm": 0.5},
    },
}
PLAN = [
    {"at_clock": 5, "join": 2},
    {"at_clock": 11, "kill": 1},
    {"at_clock": 17, "notice": "all", "warning_s": 30},
    {"at_clock": 22, "join": 2},
    {"at_clock": 26, "kill_many": "all"},
]


@pytest.mark.parametrize(
    "name",
    ["lda", *(pytest.param(n, marks=pytest.mark.slow) for n in ("embeddings", "kmeans", "kmeans-minibatch"))],
)
def test_machines_that_come_go_and_die_do_not_change_a_bit(name: str, tmp_path: Path) -> None:
    base: Mapping[str, Any] = JOBS[name]
    values = job(base, plan=PLAN, clocks=32)
    ran = FaultRig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    assert len(ran.of(MembershipChanged)) > len(PLAN)
