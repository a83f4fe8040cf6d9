"""A pool of bundles: parameter servers, whose workers draw what they compute from the owner of partition 0."""

from __future__ import annotations

from dataclasses import dataclass

from agileml.application import Replica
from agileml.core.exchange.parameter_servers import DirectPushes, ServerExchange
from agileml.core.node.sources.stores import Stores
from agileml.core.pool.server import PoolServer
from agileml.core.pool.worker import PoolWorker
from agileml.core.protocol.exchange import NodeIo, NodeParts
from agileml.core.protocol.pool_messages import BundleDrawn, DrawBundle
from agileml.core.protocol.view import View


@dataclass(frozen=True)
class PoolExchange(ServerExchange):
    """As parameter servers, but that no worker has bundles of its own."""

    def parts(self, io: NodeIo, stores: Stores, replica: Replica | None) -> NodeParts:
        server = PoolServer(io, stores, replica)
        worker = PoolWorker(io)
        return NodeParts(server, worker, PoolLinks(io.me, worker, server))


class PoolLinks(DirectPushes):
    """Hands on what workers and the owner of partition 0 say of the pool."""

    def __init__(self, me: str, worker: PoolWorker, server: PoolServer) -> None:
        super().__init__(me, server)
        self._worker, self._pool = worker, server
        self._epoch = 0

    def adopt(self, view: View) -> None:
        """Go on under a view: the worker gets only answers of its epoch."""
        self._epoch = view.epoch

    def drawn(self, sender: str, message: DrawBundle | BundleDrawn) -> None:
        """Hand on a message of the promised epoch."""
        match message:
            case DrawBundle():
                self._pool.draw(sender, message)
            case BundleDrawn() if message.epoch == self._epoch:
                self._worker.drawn(message)
