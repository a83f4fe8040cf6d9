"""A machine's actor as the driver knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agileml.cluster.ray_cluster import TieredNode
from agileml.core.protocol.inputs import NodeUp
from agileml.net.events import Address


@dataclass
class StartedActor:
    """Made with the request for its process. The driver seals the keys for it once it has told its public key."""

    name: str
    node: TieredNode
    up: NodeUp
    handle: Any
    starting: Any  # the reference to its public key, then to its address, until that is known
    watch: Any = None  # ends when its process does
    address: Address | None = None
    head: Address | None = None  # the controller that it began with
    speed: float | None = None  # of the machine that it turned out to stand for; None: it was started with it

    def stand_for(self, speed: float) -> None:
        """Have its process stand for a machine of this speed, as a multiple of its own, once it has begun."""
        self.speed = speed
        if self.address is not None:
            self.handle.stand_for.remote(speed)

    def has_begun(self, address: Address) -> None:
        """Its process has begun, and this is its address."""
        self.address = address
        if self.speed is not None:
            self.stand_for(self.speed)
