"""What KubeRay's operator, the scheduler and the kubelet do to a RayCluster's pods, on the test's server.

The rules of scaling are those of KubeRay's `reconcilePods` with its autoscaler off: pods named in `workersToDelete` go
first; then pods are made, or, where there are more than `replicas`, some are deleted that nobody named.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bidbrain.kubernetes.objects import CLUSTER_LABEL, GROUP_LABEL, NODE_TYPE_LABEL
from tests.kubernetes.api_server import Object, Server, now_text


def reconciled(replicas: int, named: list[str], pods: list[str]) -> tuple[int, list[str], list[str]]:
    """(how many pods to make, those of the named that go, those that go unnamed): KubeRay's rule for one group."""
    gone = [pod for pod in pods if pod in named]
    running = [pod for pod in pods if pod not in named]
    difference = replicas - len(running)
    return max(0, difference), gone, running[: max(0, -difference)]


class Operator:
    """Reconciles in a thread. `room`: how many pods of a group find a node. Pods run at once where they do.

    `started`, `ended`: told of pods; `unnamed`: pods that KubeRay chose itself to delete.
    """

    def __init__(self, server: Server, *, grace_s: int = 0) -> None:
        self._server, self._grace_s = server, grace_s
        self.room: dict[str, int] = {}
        self.started: Callable[[str, str], None] = lambda name, group: None
        self.ended: Callable[[str], None] = lambda name: None
        self.unnamed: list[str] = []
        self.is_away = False
        self.problem: BaseException | None = None
        self._stopping = False

    def pods(self, group: str) -> list[Object]:
        """A group's pods, oldest first."""
        return [pod for pod in self._server.items("pods") if pod["metadata"]["labels"][GROUP_LABEL] == group]

    def names(self, group: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.pods(group)]

    def taint(self, pod: str, key: str, added: str | None = None) -> None:
        """A taint on the node of a pod."""
        node = next(
            each["spec"]["nodeName"] for each in self._server.items("pods") if each["metadata"]["name"] == pod
        )
        taint = {"key": key, "effect": "NoSchedule"} | ({"timeAdded": added} if added else {})
        self._server.change("nodes", node, lambda item: item["spec"].setdefault("taints", []).append(taint))

    def evict(self, pod: str) -> None:
        """The cloud takes the pod's node, and everything on it."""
        node = f"node-{pod}"
        self._server.remove("pods", pod)
        self._server.remove("nodes", node)
        self.ended(pod)

    def delete(self, pod: str, seconds: int) -> None:
        """Somebody deletes a pod that has so much grace."""
        self._server.change(
            "pods", pod, lambda item: item["metadata"].update(deletionTimestamp=now_text(seconds))
        )

    def reconcile(self) -> None:
        """One round."""
        (cluster,) = self._server.items("rayclusters")
        for group in cluster["spec"]["workerGroupSpecs"]:
            name = group["groupName"]
            named = group.get("scaleStrategy", {}).get("workersToDelete", [])
            make, gone, unnamed = reconciled(group["replicas"], named, self.names(name))
            self.unnamed += unnamed
            for pod in (*gone, *unnamed):
                self.evict(pod)
            for _ in range(make):
                self._make(cluster["metadata"]["name"], name)

    def _make(self, cluster: str, group: str) -> None:
        name = f"{cluster}-{group}-worker-{secrets.token_hex(3)}"
        labels = {CLUSTER_LABEL: cluster, GROUP_LABEL: group, NODE_TYPE_LABEL: "worker"}
        there = len(self.pods(group))
        pod: Object = {
            "metadata": {"name": name, "labels": labels},
            "spec": {},
            "status": {"phase": "Pending"},
        }
        self._server.put("pods", pod)
        if there < self.room.get(group, 1000):
            self._server.put("nodes", {"metadata": {"name": f"node-{name}"}, "spec": {}})
            self.started(name, group)

            def run(item: Object) -> None:
                item["spec"]["nodeName"] = f"node-{name}"
                item["status"]["phase"] = "Running"

            self._server.change("pods", name, run)

    def run(self) -> None:
        """Reconcile whenever something changes."""
        try:
            while not self._stopping:
                if not self.is_away:
                    self.reconcile()
                with self._server.changed:
                    self._server.changed.wait(0.1)
        except BaseException as error:
            self.problem = error

    def stop(self) -> None:
        self._stopping = True
        with self._server.changed:
            self._server.changed.notify_all()


@contextmanager
def operating(server: Server) -> Iterator[Operator]:
    """An operator while it is open."""
    operator = Operator(server)
    thread = threading.Thread(target=operator.run, name="operator", daemon=True)
    thread.start()
    try:
        yield operator
        assert operator.problem is None, operator.problem
    finally:
        operator.stop()
        thread.join()


def ray_cluster(name: str, groups: dict[str, int], most: int = 20) -> dict[str, Any]:
    """A RayCluster with these worker groups and replicas."""
    return {
        "metadata": {"name": name},
        "spec": {
            "workerGroupSpecs": [
                {"groupName": group, "replicas": replicas, "minReplicas": 0, "maxReplicas": most}
                for group, replicas in groups.items()
            ]
        },
    }
