"""A run on a Ray cluster that somebody else started, with `ray start`, and one of whose nodes is drained."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.cluster

RAY = str(Path(sys.executable).with_name("ray"))


@dataclass
class Started:
    """A cluster from the command line, with a token."""

    address: str
    environment: dict[str, str]
    folder: Path

    def ray(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [RAY, *arguments], env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )

    def start(self, *arguments: str) -> None:
        done = self.ray("start", "--disable-usage-stats", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def started() -> Iterator[Started]:
    with tempfile.TemporaryDirectory(prefix="pt-") as name:
        folder = Path(name)
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_TMPDIR": str(folder),
        }
        cluster = Started(f"127.0.0.1:{free_port()}", environment, folder)
        try:
            port = cluster.address.rpartition(":")[2]
            cluster.start(
                "--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false",
                "--node-ip-address=127.0.0.1", f"--temp-dir={folder}",
            )  # fmt: skip
            for tier in ("reliable", "transient", "transient"):
                cluster.start(
                    f"--address={cluster.address}", "--num-cpus=1", f"--labels=tier={tier}",
                    "--node-ip-address=127.0.0.1",
                )  # fmt: skip
            yield cluster
        finally:
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if process.environ().get("RAY_TMPDIR") == str(folder):
                        process.kill()


def events(out: Path) -> list[dict[str, object]]:
    log = out / "events.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_a_drained_node_leaves_without_loss(started: Started, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = [
        "clocks=600", "machines.transient=2", "machines.max=3", f"out={out}", "seed=7",
    ]  # fmt: skip
    command = [sys.executable, "-m", "agileml.cli", "run", "configs/mlr.yaml", "--address", started.address]
    for setting in settings:
        command += ["--set", setting]
    driver = subprocess.Popen(
        command, env=started.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        until_s = time.monotonic() + 90
        while not any(event["kind"] == "clock" and event["clock"] >= 50 for event in events(out)):
            assert driver.poll() is None, driver.communicate()[0]
            assert time.monotonic() < until_s, events(out)
            time.sleep(0.05)
        node_id = transient_node(started)
        drained = started.ray(
            "drain-node", f"--address={started.address}", f"--node-id={node_id}",
            "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot",
            "--deadline-remaining-seconds=60",
        )  # fmt: skip
        assert drained.returncode == 0, drained.stdout + drained.stderr
        output = driver.communicate(timeout=120)[0]
        assert driver.returncode == 0, output
    finally:
        if driver.poll() is None:
            driver.send_signal(signal.SIGINT)
            driver.wait(timeout=20)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["clocks"] == 600
    assert summary["clocks_redone"] == 0
    log = events(out)
    assert [event["kind"] for event in log].count("notice") == 1
    assert [event["kind"] for event in log].count("released") == 1
    assert not any(event["kind"] == "lost" for event in log), [e for e in log if e["kind"] == "lost"]
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
