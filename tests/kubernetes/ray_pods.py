"""Pods as Ray nodes of this machine: each joins the cluster under its pod's name, and loses all of its processes at
once when the pod ends."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from agileml.cluster.processes import kill
from agileml.cluster.watchdog import marked, processes_marked
from tests.cluster.started import BIN, Started
from tests.kubernetes.kuberay_operator import Operator

HERE = "127.0.0.1"
TIERS = {"stays": "reliable", "spot": "transient"}


class RayPods:
    """Starts nodes one after the other: those of one machine that start together want the same ports."""

    def __init__(self, cluster: Started) -> None:
        self._cluster = cluster
        self._orders = queue.Queue[tuple[str, str] | None]()
        self._ended: set[str] = set()
        self._lock = threading.Lock()
        self.problem: BaseException | None = None
        self.started: list[str] = []

    def run(self) -> None:
        """Until `stop`."""
        try:
            while (order := self._orders.get()) is not None:
                self._start(*order)
        except BaseException as error:
            self.problem = error

    def start(self, name: str, group: str) -> None:
        self._orders.put((name, group))

    def stop(self) -> None:
        self._orders.put(None)

    def _start(self, name: str, group: str) -> None:
        with self._lock:
            if name in self._ended:
                return
            done = subprocess.run(
                [
                    str(BIN / "ray"), "start", f"--address={self._cluster.address}", "--num-cpus=1",
                    f"--labels=tier={TIERS[group]},machine={name}", f"--node-ip-address={HERE}",
                    "--dashboard-agent-listen-port=0", "--disable-usage-stats",
                ],
                env={**self._cluster.environment, **marked(name)}, cwd=self._cluster.folder,
                capture_output=True, text=True, check=False, timeout=600,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            self.started.append(name)

    def end(self, name: str) -> None:
        with self._lock:
            self._ended.add(name)
            while left := processes_marked(name):
                kill(left)


@contextmanager
def ray_pods(cluster: Started, operator: Operator) -> Iterator[RayPods]:
    """While it is open, pods of the operator are nodes of the cluster."""
    pods = RayPods(cluster)
    operator.started, operator.ended = pods.start, pods.end
    thread = threading.Thread(target=pods.run, name="ray pods", daemon=True)
    thread.start()
    try:
        yield pods
    finally:
        pods.stop()
        thread.join()
        for name in pods.started:
            pods.end(name)
