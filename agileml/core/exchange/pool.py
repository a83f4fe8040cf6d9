"""A pool of bundles: parameter servers, whose workers draw what they compute from the owner of partition 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agileml.application import Replica
from agileml.core.exchange.parameter_servers import DirectPushes, ServerExchange
from agileml.core.node.server import SendTo, Server
from agileml.core.node.sources.stores import Stores
from agileml.core.node.worker import Worker
from agileml.core.pool.server import PoolServer
from agileml.core.pool.worker import PoolWorker
from agileml.core.protocol.commands import NodeCommand
from agileml.core.protocol.job import Job
from agileml.core.protocol.pool_messages import BundleDrawn, DrawBundle
from agileml.core.protocol.view import View


@dataclass(frozen=True)
class PoolExchange(ServerExchange):
    """As parameter servers, but that no worker has bundles of its own."""

    def server(self, me: str, job: Job, send: SendTo, stores: Stores, replica: Replica | None) -> PoolServer:
        return PoolServer(me, job, send, stores, replica)

    def worker(self, me: str, job: Job, send: SendTo, ask: Callable[[NodeCommand], None]) -> PoolWorker:
        return PoolWorker(me, job, send, ask)

    def combiner(
        self,
        me: str,
        job: Job,
        worker: Worker,
        server: Server,
        send: SendTo,
        ask: Callable[[NodeCommand], None],
    ) -> PoolLinks:
        assert isinstance(worker, PoolWorker) and isinstance(server, PoolServer)
        return PoolLinks(me, worker, server)


class PoolLinks(DirectPushes):
    """Hands on what workers and the owner of partition 0 say of the pool."""

    def __init__(self, me: str, worker: PoolWorker, server: PoolServer) -> None:
        super().__init__(me, server)
        self._worker, self._pool = worker, server
        self._epoch = 0

    def adopt(self, view: View) -> None:
        """A view is in force: a worker obeys no answer of an epoch whose view it does not know."""
        self._epoch = view.epoch

    def drawn(self, sender: str, message: DrawBundle | BundleDrawn) -> None:
        """A message of the promised epoch."""
        match message:
            case DrawBundle():
                self._pool.draw(sender, message)
            case BundleDrawn() if message.epoch == self._epoch:
                self._worker.drawn(message)
