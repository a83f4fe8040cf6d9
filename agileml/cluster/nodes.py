"""The nodes of a cluster, seen from outside: asks its GCS, without becoming a driver."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from agileml.cluster.dashboard import gcs_behind, is_http
from agileml.cluster.errors import ClusterError
from agileml.cluster.ray_cluster import (
    REACH_TIMEOUT_S,
    TieredNode,
    answering,
    as_tiered_node,
    check_alive,
    drain,
    gcs_client,
    locate,
    meant,
)

RPC_TIMEOUT_S = 5.0
MESSAGE = "proteus machines terminate"


@dataclass(frozen=True)
class LiveNode:
    """A live node (`machine`). `leaves_s`: Unix time at which it will be taken away, None without a notice."""

    machine: TieredNode
    leaves_s: float | None


class ClusterNodes:
    """The nodes of one cluster. Raises ClusterError within 3 s when it cannot be reached (see `reach`); so does every
    method when it does not answer."""

    def __init__(self, address: str) -> None:
        if is_http(address := meant(address)):
            host, port = gcs_behind(address, REACH_TIMEOUT_S / 2)
            check_alive(host, port, REACH_TIMEOUT_S / 2)
        else:
            host, port = locate(address)
            check_alive(host, port, REACH_TIMEOUT_S)
        self.address = f"{host}:{port}"

    def all(self) -> list[LiveNode]:
        """The live nodes with a tier (see `as_tiered_node`), by tier and allocation."""
        with answering(self.address):
            client = self._client()
            leaving: dict[str, int] = client.get_draining_nodes(RPC_TIMEOUT_S)
            infos = client.get_all_node_info(RPC_TIMEOUT_S).values()
        found = []
        for info in infos:
            machine = as_tiered_node(_as_ray_shows_it(info))
            if machine is not None and info.state == info.ALIVE:
                at_ms = leaving.get(machine.node_id)
                found.append(LiveNode(machine, None if at_ms is None else (at_ms / 1000 or time.time())))
        return sorted(
            found, key=lambda node: (node.machine.tier, node.machine.allocation, node.machine.node_id)
        )

    def terminate(self, node_id: str, warning_s: float) -> None:
        """Drain a node: the run on it gets a notice of `warning_s` seconds, and its raylet ends once it is idle."""
        drain(self.address, node_id, time.time() + warning_s, MESSAGE)

    def _client(self) -> Any:
        return gcs_client(self.address)


def _as_ray_shows_it(info: Any) -> dict[str, Any]:
    """The same as an entry of `ray.nodes()`."""
    return {
        "NodeID": info.node_id.hex(),
        "NodeManagerAddress": info.node_manager_address,
        "Labels": dict(info.labels),
        "Resources": dict(info.resources_total),
    }


def chosen(nodes: list[LiveNode], wanted: list[str], *, every: bool) -> list[LiveNode]:
    """The nodes that `wanted` names by id or its first characters (at least 4). Raises ClusterError."""
    if every == bool(wanted):
        raise ClusterError("found no machine to terminate, expected ids or --all, and not both")
    found = list(nodes) if every else []
    for prefix in wanted:
        named = [node for node in nodes if len(prefix) >= 4 and node.machine.node_id.startswith(prefix)]
        if len(named) != 1:
            raise ClusterError(
                f"found {len(named)} machines for {prefix!r}, expected the id of one as `machines list` shows it"
            )
        found += [node for node in named if node not in found]
    return found
