"""Machines of the shared cluster that a plan may kill and freeze; those that are left serve the next run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from agileml.cluster import ray_cluster
from agileml.cluster.fleet import Appeared, FleetEvent, Vanished
from agileml.cluster.local import LocalCluster
from agileml.config.job import JobConfig
from agileml.events.terms import Fault, Loss
from tests.cluster.shared_fleet import SharedFleet


class KillableFleet(SharedFleet):
    """Does to nodes of the shared cluster what LocalFleet does to its own."""

    def __init__(self, cluster: LocalCluster, values: Mapping[str, Any] | JobConfig) -> None:
        super().__init__(cluster, values)
        self._present: set[str] = set()
        self._thaw_at_s: dict[str, float] = {}

    def poll(self) -> list[FleetEvent]:
        events = super().poll()
        self._present.update(event.node.node_id for event in events if isinstance(event, Appeared))
        for node_id in [node_id for node_id, at_s in self._thaw_at_s.items() if at_s <= time.monotonic()]:
            del self._thaw_at_s[node_id]
            self._cluster.thaw(node_id)
        alive = {node.node_id for node in ray_cluster.tiered_nodes()}
        for node_id in sorted(self._present - alive):
            self._present.discard(node_id)
            events.append(Vanished(node_id, Loss.NODE_GONE))
        return events

    def take_away(self, node_id: str) -> None:
        """A notice that ran out: the machine goes, as in the cloud."""
        if any(machine.node_id == node_id for machine in self._cluster.tiered_nodes()):
            self._cluster.kill(node_id)

    def strike(self, kind: Fault, node_id: str, seconds: float) -> None:
        if kind is Fault.FREEZE:
            self._cluster.freeze(node_id)
            self._thaw_at_s[node_id] = time.monotonic() + seconds
        else:
            self._cluster.kill(node_id)
