"""Runs as jobs of a cluster with a token: submitted, watched, stopped; and who has no right token is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agileml.cluster.errors import ClusterError
from agileml.cluster.job_server import find_server
from agileml.cluster.ray_cluster import reach
from tests.cluster.started import Started, best_s, started_cluster

pytestmark = pytest.mark.cluster

JOB = """
application: mlr
data: {kind: digits}
clocks: 60
clocks_per_pass: 4
slices: 4
machines: {reliable: 1, transient: 1, max: 2}
"""
LIMIT_S = 600.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Started]:
    with started_cluster(["reliable", "transient"], dashboard=True) as started:
        yield started


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's project, which is the working folder."""
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def until(condition: Callable[[], Any]) -> Any:
    """What `condition()` returns once it is true."""
    until_s = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < until_s, "this never came true"
        time.sleep(0.2)
    return found


def submit(cluster: Started, address: str, *arguments: str) -> str:
    """Submit, and kill the submitting process as soon as it has said the id."""
    command = [sys.executable, "-m", "agileml.cli", "submit", "job.yaml", "--address", address, *arguments]
    submitting = subprocess.Popen(
        command, env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert submitting.stdout is not None
    assert submitting.stderr is not None
    job = submitting.stdout.readline().strip()
    submitting.kill()
    said = submitting.stderr.read()
    submitting.communicate()
    assert re.fullmatch(r"job-\d{8}-\d{6}-[0-9a-f]{4}", job), said
    return job


def status(cluster: Started, job: str) -> dict[str, Any]:
    done = cluster.proteus("status", job, "--json", "--address", cluster.dashboard)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def summary_of(cluster: Started, job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cluster.home / "proteus-runs" / job / "summary.json").read_text())
    return found


def metadata_of(cluster: Started, job: str) -> dict[str, str]:
    """The metadata of a job, which Ray's dashboard shows."""
    token = Path(cluster.environment["RAY_AUTH_TOKEN_PATH"]).read_text().strip()
    asked = urllib.request.Request(
        f"{cluster.dashboard}/api/jobs/{job}", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(asked, timeout=LIMIT_S) as reply:
        found: dict[str, str] = json.load(reply)["metadata"]
    return found


@pytest.mark.slow
def test_a_submitted_run_ends_well_without_who_submitted_it(cluster: Started, project: Path) -> None:
    job = submit(cluster, cluster.address)
    follower = subprocess.Popen(
        [sys.executable, "-m", "agileml.cli", "logs", "-f", job, "--address", cluster.dashboard],
        env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert follower.stdout is not None
    output, _ = follower.communicate(timeout=LIMIT_S)
    assert follower.returncode == 0, output
    assert "done: 60 clocks, 0 redone" in output
    assert f"proteus-runs/{job}/report.html" in output
    found = status(cluster, job)
    assert (found["state"], found["clock"], found["clocks"]) == ("SUCCEEDED", 60, 60)
    shown = cluster.proteus("status", "--address", cluster.address)
    assert f"{job}: SUCCEEDED" in shown.stdout
    token = Path(cluster.environment["RAY_AUTH_TOKEN_PATH"]).read_text()
    assert token not in output
    for file in (cluster.home / "proteus-runs" / job).iterdir():
        assert token.encode() not in file.read_bytes(), file
    sequential = cluster.proteus("run", "job.yaml", "--sequential", "--out", "sequential")
    assert f"params_sha256 {summary_of(cluster, job)['params_sha256']}" in sequential.stdout


def test_a_run_that_is_stopped_keeps_its_last_cut(cluster: Started, project: Path) -> None:
    # At a pace that leaves the commands the cores: each of them loads Ray.
    settings = ["clocks=1000000", "pace.unit_s=0.1", "checkpoint.path=kept", "checkpoint.every_s=3600"]
    job = submit(cluster, cluster.dashboard, *(word for each in settings for word in ("--set", each)))

    # Not by asking for its status all the time, which would take the job's cores.
    events = cluster.home / "proteus-runs" / job / "events.jsonl"
    asked_s = time.monotonic()

    def has_cut() -> bool:
        nonlocal asked_s
        if time.monotonic() > asked_s + 20:
            assert status(cluster, job)["state"] in ("PENDING", "RUNNING"), cluster.proteus(
                "logs", job, "--address", cluster.dashboard
            )
            asked_s = time.monotonic()
        return events.is_file() and '"kind": "cut"' in events.read_text()

    until(has_cut)
    # The driver tells how far it is from time to time: a job that has just begun is at clock 0.
    found = until(
        lambda: (now := status(cluster, job)) and (now["clock"] or now["state"] != "RUNNING") and now
    )
    assert found["state"] == "RUNNING", (found, cluster.proteus("logs", job, "--address", cluster.dashboard))
    assert found["clock"] > 0
    assert metadata_of(cluster, job)["live page"] == f"proteus watch {job} --address {cluster.dashboard}"
    done = cluster.proteus("stop", job, "--address", cluster.address, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{job}: STOPPED" in done.stdout
    assert re.search(r"stopped: \d+ of 1000000 clocks", done.stdout), done.stdout
    summary = summary_of(cluster, job)
    assert summary["stopped"]
    assert 0 < summary["clocks"] < 1000000
    assert summary["checkpoints"] == {"written": 1, "failed": 0, "newest_clock": summary["clocks"]}
    assert f"kept, which has clock {summary['clocks']}" in done.stdout
    kept = cluster.proteus("checkpoint", "show", str(cluster.home / "proteus-runs" / "kept"))
    assert f"{summary['clocks']} " in kept.stdout and "whole" in kept.stdout, kept.stdout
    again = cluster.proteus("stop", job, "--address", cluster.address)
    assert "was over already (STOPPED)" in again.stdout


def asked(find: Callable[[str], str], address: str) -> str:
    """The sentence of the refusal, which comes within 3 s."""
    sentences = []

    def ask() -> None:
        with pytest.raises(ClusterError) as refused:
            find(address)
        sentences.append(str(refused.value))

    assert best_s(ask, 3.2) < 3.2
    return sentences[-1]


def test_without_the_right_token_nothing_is_let_in(
    cluster: Started, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(project / "none"))
    (project / "wrong").write_text("0" * 64)
    ways = [
        (find, address) for find in (reach, find_server) for address in (cluster.address, cluster.dashboard)
    ]
    for find, address in ways:
        assert asked(find, address) == (
            f"address: the cluster at {address} needs a token and none was found; "
            f"set RAY_AUTH_TOKEN_PATH to the file that holds it (found {project / 'none'}, "
            "which cannot be read: No such file or directory)"
        )
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(project / "wrong"))
    for find, address in ways:
        assert asked(find, address).startswith(
            f"address: the cluster at {address} refuses the token of {project / 'wrong'}; "
        )
    cluster.environment, right = {**cluster.environment, "RAY_AUTH_TOKEN_PATH": "wrong"}, cluster.environment
    try:
        for command in ("run", "submit"):
            refused = cluster.proteus(command, "job.yaml", "--address", cluster.address)
            assert refused.returncode == 2
            assert refused.stderr == (
                f"proteus: address: the cluster at {cluster.address} refuses the token of wrong; "
                "set RAY_AUTH_TOKEN_PATH to the file that holds it\n"
            )
            assert not (project / "runs").exists()
    finally:
        cluster.environment = right


@pytest.mark.slow
def test_machines_are_listed_and_one_that_gets_notice_leaves(cluster: Started, project: Path) -> None:
    def machines() -> dict[str, str]:
        shown = cluster.proteus("machines", "list", "--address", cluster.dashboard, "--json")
        assert shown.returncode == 0, shown.stderr
        found = [json.loads(line)["machine"] for line in shown.stdout.splitlines()]
        return {each["tier"]: each["node_id"] for each in found}

    before = machines()
    assert set(before) == {"reliable", "transient"}
    done = cluster.proteus(
        "machines", "terminate", before["transient"][:12], "--address", cluster.address, "--yes"
    )
    assert done.returncode == 0, done.stderr
    assert "gave 1 machines notice of 30 s" in done.stdout
    until(lambda: machines() == {"reliable": before["reliable"]})  # nothing ran on it
