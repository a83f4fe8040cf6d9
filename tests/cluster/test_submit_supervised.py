"""A supervised job of a cluster: its driver is killed, and the job goes on as the same job, in the same folder."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agileml.events.run import CheckpointSaved, RunRestarted
from agileml.events.schema import Log, events_of, of_type
from agileml.runs.event_log import EVENTS, read_events
from tests.cluster.started import Started, started_cluster

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

JOB = """
application: mlr
data: {kind: digits}
clocks: 4000
clocks_per_pass: 4
slices: 4
machines: {reliable: 1, transient: 1, max: 2}
checkpoint: {path: saved, every_s: 0.5}
"""
LIMIT_S = 600.0


def until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until_s, "this never came true"
        time.sleep(0.1)


def log_of(out: Path) -> Log:
    return read_events(out / EVENTS) if (out / EVENTS).exists() else []


def has_saved(out: Path, restarts: int) -> bool:
    """A checkpoint is whole that was written after so many restarts."""
    log = log_of(out)
    begun = of_type(log, RunRestarted)
    since_s = begun[-1].t_s if begun else 0.0
    return len(begun) == restarts and any(each.t_s > since_s for each in of_type(log, CheckpointSaved))


def drivers_of(cluster: Started, job: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if "--supervised" in words and job in words:
                found.append(process)
    return found


def test_a_job_whose_driver_is_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    with started_cluster(["reliable", "transient"], dashboard=True) as cluster:
        submitted = cluster.proteus("submit", "job.yaml", "--address", cluster.dashboard, "--supervise")
        assert submitted.returncode == 0, submitted.stderr
        job = submitted.stdout.strip()
        out = cluster.home / "proteus-runs" / job
        until(lambda: has_saved(out, 0))
        (driver,) = drivers_of(cluster, job)
        driver.kill()
        until(lambda: has_saved(out, 1))
        (found,) = cluster.proteus(
            "status", job, "--address", cluster.dashboard, "--json"
        ).stdout.splitlines()
        assert json.loads(found)["state"] == "RUNNING"
        assert cluster.proteus("stop", job, "--address", cluster.dashboard).returncode == 0
        (restart,) = events_of(log_of(out), RunRestarted)
        assert restart.cause == "its process was ended by SIGKILL"
        assert restart.clock > 0
        summary = json.loads((out / "summary.json").read_text())
        assert summary["stopped"] and summary["restarts"]["count"] == 1
        assert not drivers_of(cluster, job)
