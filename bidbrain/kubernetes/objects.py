"""Pods, nodes and worker groups as the API server describes them, reduced to the fields that a market needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

CLUSTER_LABEL, GROUP_LABEL, NODE_TYPE_LABEL = "ray.io/cluster", "ray.io/group", "ray.io/node-type"
WORKER = "worker"
MOST = 2**31 - 1  # the default of maxReplicas


class PodPhase(StrEnum):
    """The phase of a pod, in Kubernetes' words."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True)
class Pod:
    """A worker pod. created_s, deadline_s, down_s: Unix time; deadline_s: the end of its grace period, None if it was
    not deleted. node: where it is scheduled, "" while it is not. down_s: since when it runs and is not ready, though
    its containers were started again; None: it is, or they were not."""

    name: str
    group: str
    phase: PodPhase
    created_s: int
    deadline_s: int | None = None
    node: str = ""
    down_s: int | None = None

    @property
    def waits_since_s(self) -> int | None:
        """Since when it has not come to run: there is no node or no image for it, or its containers end again and
        again. None: it runs."""
        return self.created_s if self.phase is PodPhase.PENDING else self.down_s

    @property
    def is_over(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def is_staying(self) -> bool:
        """Whether it runs or will run, and was not deleted."""
        return not self.is_over and self.deadline_s is None


@dataclass(frozen=True)
class Taint:
    """A taint of a node. added_s: Unix time; None where the server does not say it."""

    key: str
    added_s: int | None = None


@dataclass(frozen=True)
class Node:
    """A node of the Kubernetes cluster."""

    name: str
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True)
class Group:
    """A worker group of a RayCluster. index: its place in the spec, which patches name.

    to_delete: its `workersToDelete`, the pods that KubeRay deletes by name. least: its minReplicas. hosts: the pods
    that KubeRay makes for each replica. is_suspended: it makes none.
    """

    name: str
    index: int
    replicas: int
    most: int = MOST
    to_delete: tuple[str, ...] = ()
    least: int = 0
    hosts: int = 1
    is_suspended: bool = False


@dataclass(frozen=True)
class RayCluster:
    """A RayCluster. version: its resourceVersion, which changes with every write. problem: why KubeRay could not make
    pods the last time, in its own words; "" where it could."""

    name: str
    version: str
    groups: tuple[Group, ...]
    annotations: Mapping[str, str]
    autoscales: bool = False
    problem: str = ""

    def group(self, name: str) -> Group | None:
        """The worker group of that name."""
        return next((group for group in self.groups if group.name == name), None)


def instant(text: str | None) -> int | None:
    """RFC 3339 as Unix time."""
    return None if not text else int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())


def pod_of(item: Mapping[str, Any]) -> Pod:
    """A Pod object. Raises KeyError, ValueError where it is none."""
    about, status = item["metadata"], item.get("status", {})
    created_s = instant(about["creationTimestamp"])
    assert created_s is not None
    return Pod(
        about["name"],
        about.get("labels", {}).get(GROUP_LABEL, ""),
        PodPhase(status.get("phase", PodPhase.PENDING)),
        created_s,
        instant(about.get("deletionTimestamp")),
        item.get("spec", {}).get("nodeName", ""),
        _down_s(status) if status.get("phase") == PodPhase.RUNNING else None,
    )


def _down_s(status: Mapping[str, Any]) -> int | None:
    """Since when a pod with containers that were started again is not ready. One that merely fails its probes, as on a
    busy machine, may work."""
    if not any(each.get("restartCount") for each in status.get("containerStatuses") or ()):
        return None
    unready = (
        each.get("lastTransitionTime")
        for each in status.get("conditions") or ()
        if each.get("type") == "Ready" and each.get("status") == "False"
    )
    return instant(next(unready, None))


def workers_of(items: Iterable[Mapping[str, Any]]) -> dict[str, Pod]:
    """The worker pods among Pod objects, by name."""
    return {
        pod.name: pod
        for item in items
        if item["metadata"].get("labels", {}).get(NODE_TYPE_LABEL) == WORKER
        for pod in (pod_of(item),)
    }


def node_of(item: Mapping[str, Any]) -> Node:
    """A Node object. Raises KeyError where it is none."""
    taints = item.get("spec", {}).get("taints") or ()
    return Node(
        item["metadata"]["name"],
        tuple(Taint(taint["key"], instant(taint.get("timeAdded"))) for taint in taints),
    )


def cluster_of(item: Mapping[str, Any]) -> RayCluster:
    """A RayCluster object. Raises KeyError where it is none."""
    about, spec = item["metadata"], item["spec"]
    groups = tuple(
        Group(
            group["groupName"],
            index,
            group.get("replicas") or 0,
            MOST if group.get("maxReplicas") is None else group["maxReplicas"],
            tuple((group.get("scaleStrategy") or {}).get("workersToDelete") or ()),
            group.get("minReplicas") or 0,
            group.get("numOfHosts") or 1,
            bool(group.get("suspend") or spec.get("suspend")),
        )
        for index, group in enumerate(spec.get("workerGroupSpecs") or ())
    )
    autoscales = bool(spec.get("enableInTreeAutoscaling"))
    failed = (
        each.get("message", "")
        for each in item.get("status", {}).get("conditions") or ()
        if each.get("type") == "ReplicaFailure" and each.get("status") == "True"
    )
    problem = " ".join(next(failed, "").split())
    annotations = about.get("annotations") or {}
    return RayCluster(about["name"], about["resourceVersion"], groups, annotations, autoscales, problem)
