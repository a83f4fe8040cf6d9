"""Interruptions that nodes have told Ray of (`preemption`), as notices for the service beside those of its queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agileml.cluster import existing
from agileml.market.nodes import MACHINE_LABEL
from bidbrain.aws.ec2 import NoticeSource
from bidbrain.aws.notices import notice_of
from bidbrain.live.cloud import Alert, InstanceNotice


def _ray_nodes() -> list[Mapping[str, Any]]:
    import ray

    found: list[Mapping[str, Any]] = ray.nodes()
    return found


class DrainNotices:
    """A source of notices: nodes that are being drained with a deadline and carry the label of their machine."""

    def __init__(
        self,
        nodes: Callable[[], list[Mapping[str, Any]]] = _ray_nodes,
        draining: Callable[[], dict[str, float | None]] = existing.draining,
    ) -> None:
        """nodes: entries as of `ray.nodes()`. draining: node id -> Unix time."""
        self._nodes, self._draining = nodes, draining

    def notices(self) -> tuple[InstanceNotice, ...]:
        """Those of now; they are repeated while the node drains."""
        deadlines = {node: at_s for node, at_s in self._draining().items() if at_s is not None}
        if not deadlines:
            return ()
        machines = {node["NodeID"]: (node.get("Labels") or {}).get(MACHINE_LABEL) for node in self._nodes()}
        return tuple(
            notice_of(Alert.TERMINATE, machine, int(at_s))
            for node, at_s in sorted(deadlines.items())
            if (machine := machines.get(node)) is not None
        )


class MergedNotices:
    """Several sources of notices as one."""

    def __init__(self, *sources: NoticeSource) -> None:
        self._sources = sources

    def notices(self) -> tuple[InstanceNotice, ...]:
        """The notices of all sources."""
        return tuple(notice for source in self._sources for notice in source.notices())
