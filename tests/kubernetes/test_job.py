"""`proteus run` in a process of its own, on a RayCluster whose pods are Ray nodes of this machine.

Real here: the session, its market on KubeRay and the service, requests over HTTPS, code that travels to the nodes. The
API server and KubeRay are the test's.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from agileml.aws.boot import HEALTH_CHECK
from agileml.cluster.local import LocalCluster
from agileml.cluster.watchdog import LIVENESS_PORT
from agileml.events.market import AllocationEnded, InstanceNoticed, InstancesBought
from agileml.events.run import MachineLost, MachineReleased, MembershipChanged
from agileml.events.schema import E, events_of
from agileml.runs.event_log import read_events
from tests.cluster.held_back import APPLICATION
from tests.cluster.started import Started, started_cluster
from tests.kubernetes.ground import Ground, ground_of
from tests.kubernetes.ray_pods import HERE, RayPods, ray_pods

pytestmark = pytest.mark.cluster

LIMIT_S = 400.0
NTH = "aws-node-termination-handler/spot-itn"
RAY_VARIABLES = {f"RAY_health_check_{key}": str(value) for key, value in HEALTH_CHECK.items()}
JOB: dict[str, Any] = {
    "application": "held_back:HeldBack",
    "data": {"kind": "digits"},
    "optimizer": {"kind": "adam", "learning_rate": 0.01},
    "clocks": 200,
    "clocks_per_pass": 4,
    "slices": 8,
    "machines": {"reliable": 1, "max": 4},
    "stage_thresholds": [1, 2],
    "verify": True,
    "address": "replaced",
    "checkpoint": {"path": "checkpoints", "every_s": 60},
    "market": {
        "kind": "kubernetes",
        "cluster": "ray",
        "pools": {"spot": {"vcpus": 1, "usd_per_h": 0.02}},
        "reliable": {"group": "stays", "vcpus": 1, "usd_per_h": 0.05},
        "account": "replaced",
        "cap": 1.0,
        "job_vcpus": 2,
        "job_hours": 0.1,
        "budget_usd": 1.0,
    },
}


@dataclass
class Rig:
    """A RayCluster, its head, and a project on it."""

    ground: Ground
    cluster: Started
    pods: RayPods
    folder: Path

    def proteus(self, out: str, *settings: str) -> subprocess.Popen[str]:
        """`proteus run` on the head."""
        return subprocess.Popen(
            run_command(out, *settings), env=self.cluster.environment, cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def events(self, kind: type[E]) -> list[E]:
        log = self.folder / "run" / "events.jsonl"
        return events_of(read_events(log), kind) if log.is_file() else []

    def transient(self) -> int:
        """Spot machines that take part, as the run says itself."""
        changes = self.events(MembershipChanged)
        return changes[-1].transient if changes else 0

    def until(self, run: subprocess.Popen[str], condition: Callable[[], Any]) -> Any:
        """What `condition()` returns once it is true; the run goes on meanwhile."""
        until_s = time.monotonic() + LIMIT_S
        while not (found := condition()):
            for problem in (self.pods.problem, self.ground.operator.problem):
                assert problem is None, problem
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < until_s, "this never came true"
            time.sleep(0.1)
        return found


def run_command(out: str, *settings: str) -> list[str]:
    command = [sys.executable, "-m", "agileml.cli", "run", "job.yaml", "--yes", "--out", out]
    return command + [word for setting in settings for word in ("--set", setting)]


def variables(ground: Ground) -> dict[str, str]:
    """What a pod has in its environment."""
    port = str(ground.server.port)
    return {"PYTHONPATH": os.getcwd(), "KUBERNETES_SERVICE_HOST": HERE, "KUBERNETES_SERVICE_PORT": port}


def write_project(folder: Path, address: str, ground: Ground) -> None:
    values = {**JOB, "address": address}
    values["market"] = {**JOB["market"], "account": str(ground.server.account)}
    (folder / "job.yaml").write_text(yaml.safe_dump(values))
    (folder / "held_back.py").write_text(APPLICATION.format(let_go=str(folder / "let_go")))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("pods")
    with started_cluster([], variables=RAY_VARIABLES) as cluster, ground_of(folder) as ground:
        write_project(folder, cluster.address, ground)
        cluster.environment |= variables(ground)
        with ray_pods(cluster, ground.operator) as pods:
            yield Rig(ground, cluster, pods, folder)


def wait_for_the_lock() -> None:
    """Another copy of these tests may hold the port of the head of this address."""
    until_s = time.monotonic() + LIMIT_S
    while True:
        try:
            socket.create_server((HERE, LIVENESS_PORT), reuse_port=False).close()
        except OSError:
            assert time.monotonic() < until_s, f"something of this machine has port {LIVENESS_PORT}"
            time.sleep(0.5)
        else:
            return


@pytest.mark.slow
def test_a_job_lives_through_a_preemption_and_a_join(rig: Rig) -> None:
    """Two spot pods; the node of one is tainted and taken; KubeRay's pod in its place joins. The bits are those of one
    process, and nothing is left."""
    wait_for_the_lock()
    operator = rig.ground.operator
    run = rig.proteus("run")
    rig.until(run, lambda: rig.transient() == 2)
    tainted, stays = operator.names("spot")
    tainted_s = time.time()
    operator.taint(tainted, NTH)
    rig.until(run, lambda: rig.events(MachineReleased))
    operator.evict(tainted)
    rig.until(run, lambda: set(operator.names("spot")) - {tainted, stays} and rig.transient() == 2)
    (rig.folder / "let_go").touch()
    output, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said

    summary = json.loads((rig.folder / "run" / "summary.json").read_text())
    assert summary["same_as_sequential"] is True and "the same bits as one process" in output
    assert (summary["clocks"], summary["clocks_redone"]) == (JOB["clocks"], 0)
    assert not rig.events(MachineLost), "what was announced had left before it was taken"
    (noticed,) = rig.events(InstanceNoticed)
    assert noticed.instance == tainted
    bought = [pod for event in rig.events(InstancesBought) for pod in event.instances]
    assert set(bought) <= set(rig.pods.started) and len(bought) == 1 + 2 + 1
    endings = sorted(event.ending for event in rig.events(AllocationEnded))
    assert endings == ["evicted", "job_end", "job_end", "job_end"]
    market = summary["market"]
    assert market["finished"] and market["evictions"] == 1 and 0 < market["usd"] < 0.1

    rig.ground.settled()
    assert not rig.ground.server.items("pods") and not operator.unnamed
    assert list((rig.cluster.home / "proteus-runs" / "risk").iterdir()), "what was learned of the pools"
    assert abs(noticed.deadline_s - tainted_s - 120) < 5


def test_what_cannot_run_is_one_sentence(local_cluster: LocalCluster, tmp_path: Path) -> None:
    wait_for_the_lock()
    with ground_of(tmp_path) as ground:
        write_project(tmp_path, local_cluster.address, ground)
        done = subprocess.run(
            run_command("refused", "market.cluster=gone", "checkpoint.path=elsewhere"),
            env={**os.environ, **variables(ground)}, cwd=tmp_path, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=LIMIT_S,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (2, ""), done
        sentence = "market.cluster: found no RayCluster gone in namespace here, expected one, such as"
        assert done.stderr.startswith("proteus: ") and done.stderr.count("\n") == 1, done.stderr
        assert sentence in done.stderr
        assert not ground.server.items("pods")
