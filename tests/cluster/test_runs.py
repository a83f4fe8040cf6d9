"""Whole runs on real Ray nodes: the same bits for every set of machines, and nothing done twice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import agileml
from agileml.cluster.local import LocalCluster
from agileml.errors import RunError
from agileml.events.run import ClockDone, MachinesJoined
from agileml.events.schema import events_of, of_type
from agileml.runs.event_log import EVENTS, read_events
from agileml.runs.folder import MODEL, SUMMARY, TRACE
from agileml.session import Result
from tests.agileml.runs.model_file import model_sha256
from tests.agileml.runs.test_profiles import check_format
from tests.cluster.shared_fleet import SharedFleet
from tests.faults.fault_rig import MF, MLR

pytestmark = pytest.mark.cluster

PLAN = [
    {"at_clock": 6, "join": 2},
    {"at_clock": 12, "notice": 2, "warning_s": 60},
    {"at_clock": 18, "notice": "all", "warning_s": 30},
]
ONE = {"machines": {"reliable": 1, "transient": 0, "max": 8}}
THREE = {"machines": {"reliable": 1, "transient": 2, "max": 8}}
SHAPES: dict[str, dict[str, Any]] = {
    "one machine": ONE,
    "joins and notices": {**THREE, "plan": PLAN},
    "stage 1": {**THREE, "stage": 1},
    "stage 2": {**THREE, "stage": 2},
    "stage 3": {**THREE, "stage": 3},
}


def job(base: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    stages = {"stage": "thresholds", "stage_thresholds": [1, 3]}
    return {"clocks": 24, "slices": 8, **stages, **base, **more}


def train(cluster: LocalCluster, values: dict[str, Any], out: Path) -> Result:
    fleet = SharedFleet(cluster, values)
    return agileml.run(values, name=out.name, fleet=fleet, out=str(out))


@pytest.fixture(scope="module")
def shared(local_cluster: LocalCluster) -> LocalCluster:
    """The file's cluster: its nodes stay from run to run."""
    return local_cluster


CHANGING = "joins and notices"  # it goes through all three stages
SGD = {"kind": "sgd", "learning_rate": 0.001}
ADAM = {"kind": "adam", "learning_rate": 0.01}
GRID = [
    # tests/faults/test_real_nodes.py has such a run with faults as well.
    pytest.param(MF, [CHANGING], id="mf momentum, joins and notices", marks=pytest.mark.slow),
    pytest.param(MF, [name for name in SHAPES if name != CHANGING], id="mf momentum", marks=pytest.mark.slow),
    pytest.param(MLR, SHAPES, id="mlr adam", marks=pytest.mark.slow),
    pytest.param({**MF, "optimizer": SGD}, SHAPES, id="mf sgd", marks=pytest.mark.slow),
    pytest.param({**MF, "optimizer": ADAM}, SHAPES, id="mf adam", marks=pytest.mark.slow),
    pytest.param({**MF, "model": {"mode": "steps"}}, SHAPES, id="mf steps", marks=pytest.mark.slow),
    pytest.param({**MLR, "optimizer": SGD}, SHAPES, id="mlr sgd", marks=pytest.mark.slow),
    pytest.param({**MLR, "optimizer": MF["optimizer"]}, SHAPES, id="mlr momentum", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("base", "shapes"), GRID)
def test_one_digest_for_every_set_of_machines(
    shared: LocalCluster,
    base: dict[str, Any],
    shapes: Iterable[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    wanted = agileml.run(job(base, **ONE), sequential=True, out=str(tmp_path / "sequential")).summary
    for name in shapes:
        shape = SHAPES[name]
        values = job(base, profile="plan" in shape, **shape)
        result = train(shared, values, tmp_path / name.replace(" ", "-"))
        summary = result.summary
        assert summary["params_sha256"] == wanted["params_sha256"], name
        assert summary["clocks_redone"] == 0, name
        if "plan" in shape:
            check_planned(result)
            check_profiled(result)
        assert (result.folder / TRACE).exists() == ("plan" in shape)


def check_planned(result: Result) -> None:
    """Everything that was planned happened, in all three stages, and nobody waited long."""
    summary = result.summary
    assert summary["stages"] == [2, 3, 2, 1]
    assert summary["plan"]["planned"] == summary["plan"]["fired"] == summary["plan"]["finished"] == len(PLAN)
    times_s = [done.t_s for done in of_type(read_events(result.folder / EVENTS), ClockDone)]
    clock_s = median(later - earlier for earlier, later in pairwise(times_s))
    print(f"longest gap {summary['longest_gap_s']:.3f} s, a clock {clock_s:.4f} s")
    assert summary["longest_gap_s"] <= 0.5 + 2 * clock_s


def check_profiled(result: Result) -> None:
    """The trace is a good one and shows the machines; the log knows what time was spent with."""
    events = json.loads((result.folder / TRACE).read_text())["traceEvents"]
    check_format(events)
    joined = {
        name
        for joined in events_of(read_events(result.folder / EVENTS), MachinesJoined)
        for name in joined.machines
    }
    named = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"controller", "m0"} <= named <= {"controller"} | joined
    assert result.summary["time_spent_s"]["compute"] > 0


@pytest.mark.slow
def test_a_training_that_diverges_leaves_its_last_good_cut(shared: LocalCluster, tmp_path: Path) -> None:
    diverging = {**MF, "optimizer": {"kind": "sgd", "learning_rate": 0.3}}
    # It diverges in clock 10: without a pace that is after 30 ms, in which a busy controller commits no cut.
    pace = {"unit_s": 0.02}
    values = job(diverging, clocks=400, cuts={"every_s": 0.001, "max_clocks": 1}, pace=pace, **ONE)
    with pytest.raises(RunError, match=r"clock \d+.*; the last good cut, of clock \d+, is "):
        train(shared, values, tmp_path / "run")
    summary = json.loads((tmp_path / "run" / SUMMARY).read_text())
    model = load_file(tmp_path / "run" / MODEL)
    assert summary["model_clock"] > 0 and "clock" in summary["failed"]
    assert all(np.isfinite(table).all() for table in model.values())
    assert summary["params_sha256"] == model_sha256(tmp_path / "run" / MODEL)
