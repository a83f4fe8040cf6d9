"""Runs that are interrupted, cannot start, or wait for machines, as their user sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agileml.events.run import CutCommitted
from agileml.events.schema import events_of
from agileml.runs.event_log import EVENTS, read_events
from agileml.runs.folder import REPORT, SUMMARY
from tests.cluster.started import started_cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
JOB = """\
application: mlr
data: {kind: blobs, examples: 200, features: 5, classes: 3}
clocks: 10000000
clocks_per_pass: 4
machines: {reliable: 1, transient: 1, max: 2}
checkpoint: {path: saved, every_s: 0.2}
"""
LIMIT_S = 600.0


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    (folder / "job.yaml").write_text(JOB)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "agileml.cli", "run", "job.yaml", "--out", "out", *more],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def until(run: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not happened():
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < until_s
        time.sleep(0.05)


def has_cut(folder: Path) -> bool:
    log = folder / "out" / EVENTS
    return log.exists() and len(events_of(read_events(log), CutCommitted)) > 2


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_ctrl_c_leaves_model_report_and_hint(number: signal.Signals, tmp_path: Path) -> None:
    run = start(tmp_path)
    try:
        until(run, lambda: has_cut(tmp_path))
        run.send_signal(number)
        out, err = run.communicate(timeout=LIMIT_S)
    finally:
        run.kill()
    assert run.returncode == 0, err
    summary = json.loads((tmp_path / "out" / SUMMARY).read_text())
    assert summary["stopped"] and summary["clocks"] > 0
    assert (tmp_path / "out" / REPORT).exists()
    assert f"stopped: {summary['clocks']} of 10000000 clocks" in out
    assert "go on with --resume saved, which has clock" in out
    assert "told to stop: the run ends with its next cut" in err


STOPPED_EARLY = """
import os, signal, ray
from agileml.cluster.local import LocalCluster

connect = ray.init

def stopped_at_once(**settings):
    connect(**settings)
    os.kill(os.getpid(), signal.SIGTERM)

ray.init = stopped_at_once

def leave(number, frame):
    raise SystemExit("told to stop")

signal.signal(signal.SIGTERM, leave)
with LocalCluster():
    pass
"""


@pytest.mark.slow
def test_a_job_that_is_stopped_while_it_connects_prints_no_trace_of_rays_core() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_EARLY], capture_output=True, text=True, check=False, timeout=LIMIT_S,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.strip()) == (1, "", "told to stop")


@pytest.mark.slow
def test_processes_that_end_at_their_start_are_shown_and_the_run_can_be_stopped(tmp_path: Path) -> None:
    # Python imports it before anything else, and only the machines' processes look into this folder so early.
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('Error: the site of the user')\n")
    run = start(tmp_path)
    try:
        assert run.stderr is not None
        said = ""
        until_s = time.monotonic() + LIMIT_S
        while "Error: the site of the user" not in said:
            assert time.monotonic() < until_s
            line = run.stderr.readline()
            assert line, said
            said += line
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=300)
    finally:
        run.kill()
    assert run.returncode == 1
    assert "told to stop before the first clock: there is no result" in err


@pytest.mark.slow
def test_a_run_that_waits_says_for_which_nodes_and_gives_up(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    with started_cluster(["reliable"]) as cluster:
        done = cluster.proteus(
            "run", str(tmp_path / "job.yaml"), "--address", cluster.address, "--out", str(tmp_path / "out"),
            "--set", "machines.wait_s=15",
        )  # fmt: skip
    assert done.returncode == 1
    wanted = (
        "wants 1 reliable + 1 transient of 1 CPUs each (label tier=reliable or tier=transient); the cluster has "
        f"1 reliable + 0 transient; add one with `ray start --address={cluster.address} --labels tier=transient`"
    )
    assert f"proteus: the run waits: it {wanted}" in done.stderr
    assert f"proteus: no machine came for machines.wait_s = 15 s: the run {wanted}" in done.stderr
