"""A run on a Ray cluster that somebody else started, with `ray start`, and one of whose nodes is drained."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agileml.events.run import ClockDone, MachineLost, MachineNoticed, MachineReleased
from agileml.events.schema import Log, events_of
from agileml.runs.event_log import read_events
from tests.cluster.started import Started, started_cluster

pytestmark = pytest.mark.cluster


@pytest.fixture
def started() -> Iterator[Started]:
    with started_cluster(["reliable", "transient", "transient"]) as cluster:
        yield cluster


def events(out: Path) -> Log:
    log = out / "events.jsonl"
    return read_events(log) if log.exists() else []


def test_a_drained_node_leaves_without_loss(started: Started, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = [
        "clocks=600", "machines.transient=2", "machines.max=3", f"out={out}", "seed=7",
        "pace.unit_s=0.008",  # about 50 ms a clock, which leaves `ray drain-node` a core
        "heartbeat.timeout_s=10",  # a machine that a busy computer starves for a second is not lost
    ]  # fmt: skip
    command = [sys.executable, "-m", "agileml.cli", "run", "configs/mlr.yaml", "--address", started.address]
    for setting in settings:
        command += ["--set", setting]
    node_id = transient_node(started)  # before the run: it must not end while we look
    driver = subprocess.Popen(
        command, env=started.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        until_s = time.monotonic() + 240
        while not any(done.clock >= 50 for done in events_of(events(out), ClockDone)):
            assert driver.poll() is None, driver.communicate()[0]
            assert time.monotonic() < until_s, events(out)
            time.sleep(0.05)
        drained = started.ray(
            "drain-node", f"--address={started.address}", f"--node-id={node_id}",
            "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot",
            "--deadline-remaining-seconds=60",
        )  # fmt: skip
        assert drained.returncode == 0, drained.stdout + drained.stderr
        output = driver.communicate(timeout=600)[0]
        assert driver.returncode == 0, output
    finally:
        if driver.poll() is None:
            driver.send_signal(signal.SIGINT)
            driver.wait(timeout=300)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["clocks"] == 600
    assert summary["clocks_redone"] == 0
    log = events(out)
    assert len(events_of(log, MachineNoticed)) == 1
    assert len(events_of(log, MachineReleased)) == 1
    assert not events_of(log, MachineLost)
    sequential = tmp_path / "sequential"
    command = [sys.executable, "-m", "agileml.cli", "run", "configs/mlr.yaml", "--sequential"]
    for setting in [*settings[:3], settings[4], f"out={sequential}"]:
        command += ["--set", setting]
    subprocess.run(command, check=True, capture_output=True)
    reference = json.loads((sequential / "summary.json").read_text())
    assert summary["params_sha256"] == reference["params_sha256"]


def transient_node(started: Started) -> str:
    """The id of one node that is labelled transient."""
    script = (
        f"import ray; ray.init(address={started.address!r}, logging_level='ERROR', log_to_driver=False);"
        "print([n['NodeID'] for n in ray.nodes() if n['Labels'].get('tier') == 'transient'][0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=started.environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()[-1]


USERS = {
    "net.py": """
import torch
from helper import WIDTH

def make(): return torch.nn.Sequential(torch.nn.Linear(4, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 2))
def step(module, batch): return torch.nn.functional.cross_entropy(module(batch[0]), batch[1])
""",
    "helper.py": "WIDTH = 8",
    "items/__init__.py": """
import numpy as np

def data():
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)
""",
    "rates.py": "def factor(clock): return 1 / (1 + clock)",
    "job.yaml": """
application: torch
model: {module: net:make, step: net:step, batch_size: 16}
data: {dataset: items:data}
optimizer: {kind: sgd, learning_rate: 0.1, schedule: {kind: function, function: rates:factor}}
machines: {reliable: 1, transient: 2, max: 3}
clocks: 8
""",
}


@pytest.mark.slow
def test_the_modules_that_a_config_names_travel_with_the_run(started: Started, tmp_path: Path) -> None:
    for name, text in USERS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "agileml.cli", "run", "job.yaml", "--out"]
    done = subprocess.run(
        [*command, "out", "--address", started.address],
        cwd=tmp_path,
        env=started.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [digest] = [line for line in done.stdout.splitlines() if line.startswith("params_sha256")]
    alone = subprocess.run(
        [*command, "alone", "--sequential"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert digest in alone.stdout
