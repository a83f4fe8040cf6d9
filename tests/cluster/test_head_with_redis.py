"""A head whose GCS keeps its state in Redis dies under a run and comes back: the run goes on, with the same bits.

The run's process is on another host than the head, as far as Ray can tell, since it would die with that of the head.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agileml.cluster.processes import kill, tree
from agileml.events.run import ClockDone, CutCommitted, MachineLost
from agileml.events.schema import Log, events_of, of_type
from agileml.runs.event_log import EVENTS, read_events
from tests.cluster.started import Started, free_port, own_address, started_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server, as Debian has it"),
]

HEAD = "127.0.0.3"
CLOCKS = 1500
PACE_S = 0.01  # of a unit: the run outlives the head
LIMIT_S = 600.0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """The address of a Redis server."""
    port = free_port()
    command = [
        "redis-server",
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        yield f"127.0.0.1:{port}"
        server.kill()


@pytest.fixture
def cluster(redis: str) -> Iterator[Started]:
    """A head alone, and a node of each tier on another host."""
    with started_cluster([], ip=HEAD, variables={"RAY_REDIS_ADDRESS": redis}) as started:
        for tier in ("reliable", "transient"):
            started.start(
                f"--address={started.address}", "--num-cpus=1", f"--labels=tier={tier}",
                f"--node-ip-address={own_address()}", "--dashboard-agent-listen-port=0",
            )  # fmt: skip
        yield started


def command(out: Path, *more: str) -> list[str]:
    settings = [
        f"clocks={CLOCKS}",
        "machines.transient=1",
        "plan=[]",
        f"pace={{unit_s: {PACE_S}}}",
        f"out={out}",
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, "-m", "agileml.cli", "run", "configs/mlr.yaml", *words, *more]


def log_of(out: Path) -> Log:
    return read_events(out / EVENTS) if (out / EVENTS).exists() else []


def until(condition: Callable[[], bool], run: subprocess.Popen[str]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert run.poll() is None, run.communicate()[0]
        assert time.monotonic() < until_s
        time.sleep(0.1)


def of_head(cluster: Started, name: str) -> psutil.Process:
    """The process of the head with this name."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = [word.replace("_", "-") for word in process.cmdline()]
            is_heads = process.name() == name and f"--node-ip-address={HEAD}" in words
            if is_heads and process.environ().get("RAY_TMPDIR") == str(cluster.folder):
                return process
    raise AssertionError(f"the head has no {name}")


# Ray would make the process a driver of the head's node, since that is on this computer, too.
DRIVER = """
import functools, sys
import ray
ray.init = functools.partial(ray.init, _node_ip_address=sys.argv.pop(1))
from agileml.cli import main
main(sys.argv[1:])
"""


def ran(cluster: Started, tmp_path: Path, harm: Callable[[], None]) -> tuple[Log, dict[str, object]]:
    """The log and the summary of a run whose head suffers after its first cut, held against one process."""
    out = tmp_path / "run"
    words = command(out, "--address", cluster.address)[3:]
    run = subprocess.Popen(
        [sys.executable, "-c", DRIVER, own_address(), *words],
        env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        until(lambda: bool(of_type(log_of(out), CutCommitted)), run)
        harm()
        said, _ = run.communicate(timeout=LIMIT_S)
    finally:
        run.kill()
    assert run.returncode == 0, said
    log, summary = log_of(out), json.loads((out / "summary.json").read_text())
    assert (summary["clocks"], summary["clocks_redone"]) == (CLOCKS, 0)
    assert not events_of(log, MachineLost)
    subprocess.run(command(tmp_path / "sequential", "--sequential"), check=True, capture_output=True)
    wanted = json.loads((tmp_path / "sequential" / "summary.json").read_text())
    assert summary["params_sha256"] == wanted["params_sha256"]
    times_s = [each.t_s for each in of_type(log, ClockDone)]
    print(
        f"at most {max(after - before for before, after in itertools.pairwise(times_s)):.1f} s between two clocks"
    )
    return log, summary


def test_the_gcs_dies_and_starts_again(cluster: Started, tmp_path: Path) -> None:
    def harm() -> None:
        gcs = of_head(cluster, "gcs_server")
        words, environment = gcs.cmdline(), gcs.environ()
        kill([gcs])
        time.sleep(3)  # the run goes on meanwhile, which is the point
        subprocess.Popen(words, env=environment, start_new_session=True)

    ran(cluster, tmp_path, harm)


def test_the_head_dies_whole_and_another_takes_its_place(cluster: Started, tmp_path: Path) -> None:
    """GCS, raylet, controller and all: the new head is another node for Ray, and the controller starts on it."""

    def harm() -> None:
        gcs = of_head(cluster, "gcs_server")
        port = cluster.address.rpartition(":")[2]
        kill([gcs, *tree(of_head(cluster, "raylet"))])
        # The nodes of another host do not share it.
        for file in cluster.folder.rglob("ray_current_cluster"):
            file.unlink()
        cluster.start(
            "--head", f"--port={port}", "--num-cpus=0", f"--node-ip-address={HEAD}", f"--temp-dir={cluster.folder}",
            f"--dashboard-agent-listen-port={free_port()}", "--include-dashboard=false",
        )  # fmt: skip

    ran(cluster, tmp_path, harm)
