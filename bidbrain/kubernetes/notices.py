"""Preemption notices of pods: a taint of the node, or the deletion of the pod itself. Pure.

A deleted pod says when it ends: its deletionTimestamp is the end of its grace period. A taint says only why; how long
the node lives then is a property of the cloud, so each key has its seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bidbrain.kubernetes.objects import Node, Pod
from bidbrain.live.cloud import Alert, InstanceNotice

# Seconds from a taint to the end of the pods on its node. AWS gives two minutes. GKE gives 30 s, of which its kubelet
# leaves 15 s to pods that are not the system's.
TAINTS: dict[str, int] = {
    "aws-node-termination-handler/spot-itn": 120,
    "karpenter.sh/disrupted": 120,
    "cloud.google.com/impending-node-termination": 15,
}
HINTS = frozenset({"aws-node-termination-handler/rebalance-recommendation"})


@dataclass
class TaintTimes:
    """When each taint was first seen, by node and key: most taints carry no time. A taint that goes is forgotten."""

    _seen: dict[tuple[str, str], int] = field(default_factory=dict)

    def look(self, nodes: Iterable[Node], now_s: int) -> None:
        """Take note of the taints of now."""
        present = {
            (node.name, taint.key): now_s if taint.added_s is None else taint.added_s
            for node in nodes
            for taint in node.taints
        }
        self._seen = {place: self._seen.get(place, at_s) for place, at_s in present.items()}

    def of(self, node: str) -> dict[str, int]:
        """Key -> Unix time, for the taints of a node."""
        return {key: at_s for (name, key), at_s in self._seen.items() if name == node}


def notices_of(
    pods: Iterable[Pod], times: TaintTimes, seconds: Mapping[str, int]
) -> tuple[InstanceNotice, ...]:
    """The notices of these pods now: of each the soonest end that a taint or its deletion announces, and hints.

    seconds: from a taint to the end of its node, by key.
    """
    found: list[InstanceNotice] = []
    for pod in pods:
        taints = times.of(pod.node) if pod.node else {}
        ends = [at_s + seconds[key] for key, at_s in taints.items() if key in seconds]
        if pod.deadline_s is not None:
            ends.append(pod.deadline_s)
        if ends:
            found.append(_notice(Alert.TERMINATE, pod.name, min(ends)))
        found += [_notice(Alert.REBALANCE, pod.name, at_s) for key, at_s in taints.items() if key in HINTS]
    return tuple(found)


def _notice(alert: Alert, pod: str, at_s: int) -> InstanceNotice:
    """The id holds the deadline: the service passes on a sooner one as news."""
    return InstanceNotice(f"{alert}-{pod}-{at_s}", pod, alert, at_s)
