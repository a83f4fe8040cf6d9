"""A supervised job of a cluster: its driver is killed, and the job goes on as the same job, in the same folder."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import psutil
import pytest

from agileml.events.run import RunRestarted
from agileml.events.schema import events_of
from tests.cluster.started import Started, started_cluster
from tests.faults.supervised_run import has_saved_since, log_of, until

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
        until(lambda: has_saved_since(out, 0))
        (driver,) = drivers_of(cluster, job)
        driver.kill()
        until(lambda: has_saved_since(out, 1))
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
