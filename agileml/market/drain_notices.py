"""Interruptions that nodes have told Ray of (`preemption`), as notices for the service beside those of its queue."""

from __future__ import annotations

from collections.abc import Callable

from agileml.cluster import ray_cluster
from agileml.market.nodes import Entry, labelled, ray_nodes
from bidbrain.live.cloud import Alert, InstanceNotice, notice_of


class DrainNotices:
    """A source of notices: nodes of instances that are being drained with a deadline."""

    def __init__(
        self,
        nodes: Callable[[], list[Entry]] = ray_nodes,
        draining: Callable[[], dict[str, float | None]] = ray_cluster.draining,
        name_of: Callable[[Entry], str | None] = labelled,
    ) -> None:
        """nodes: entries as of `ray.nodes()`. draining: node id -> Unix time. name_of: see `nodes.JoinedNodes`."""
        self._nodes, self._draining, self._name_of = nodes, draining, name_of

    def notices(self) -> tuple[InstanceNotice, ...]:
        """The present notices: they are repeated while the node drains."""
        deadlines = {node: at_s for node, at_s in self._draining().items() if at_s is not None}
        if not deadlines:
            return ()
        machines = {node["NodeID"]: self._name_of(node) for node in self._nodes()}
        return tuple(
            notice_of(Alert.TERMINATE, machine, int(at_s))
            for node, at_s in sorted(deadlines.items())
            if (machine := machines.get(node)) is not None
        )
