"""A played market whose reliable machine is behind a link of its own: a network namespace of this computer.

All other nodes, the head and the driver stay on this computer, at the bridge's address, and reach each other as they
do without it. What they exchange with the reliable machine passes its link. Needs root and iproute2 (see `hosts`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from hosts import Hosts, Link
from ray._private import ray_constants, services

from agileml.cluster.local import LocalCluster
from agileml.cluster.ray_cluster import TIER_LABEL
from agileml.events.terms import Tier
from agileml.market import played

RELIABLE_HOST = 0


@contextlib.contextmanager
def narrow_link(link: Link) -> Iterator[None]:
    """While this is open, the reliable node of every market that this process plays is behind `link`.

    Raises hosts.HostsError where there can be no hosts.
    """
    with Hosts(1, link) as hosts:
        route = ["ip", "route", "add", "default", "via", hosts.here]  # Ray looks for the way to the internet
        assert hosts.start(RELIABLE_HOST, route).wait() == 0

        class Cluster(LocalCluster):
            def _add_node(self, **arguments: Any) -> Any:
                if arguments.get("labels", {}).get(TIER_LABEL) != str(Tier.RELIABLE):
                    return super()._add_node(node_ip_address=hosts.here, **arguments)
                with _raylets_in(hosts.space(RELIABLE_HOST)):
                    return super()._add_node(node_ip_address=hosts.address(RELIABLE_HOST), **arguments)

        with mock.patch.object(played, "LocalCluster", Cluster):
            yield


@contextlib.contextmanager
def _raylets_in(space: str) -> Iterator[None]:
    """Raylets that start meanwhile are in a network namespace, and so is all that they start."""
    start = services.start_ray_process

    def started(command: list[str], process_type: str, *more: Any, **options: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_RAYLET:
            command = ["nsenter", f"--net=/run/netns/{space}", *command]  # becomes the raylet: one process
        return start(command, process_type, *more, **options)

    with mock.patch.object(services, "start_ray_process", started):
        yield
