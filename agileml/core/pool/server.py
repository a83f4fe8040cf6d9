"""A server of partitions; that of partition 0 also hands out the bundles of the pool."""

from __future__ import annotations

from agileml.application import Array, Replica
from agileml.core.node.server import Server
from agileml.core.node.sources.stores import Stores
from agileml.core.pool.bundles import BundlePool
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.messages import MinibatchParams, MinibatchPull, Params, Prepare, Pull
from agileml.core.protocol.pool_messages import DrawBundle
from agileml.core.protocol.view import View


class PoolServer(Server):
    """As a `Server`, but that workers ask the owner of partition 0 what to compute."""

    def __init__(self, io: NodeIo, stores: Stores, replica: Replica | None = None) -> None:
        super().__init__(io, stores, replica)
        self._pool: BundlePool | None = None  # of the view, where partition 0 is here
        # By worker, those of a view that this machine does not know yet.
        self._asks: dict[str, DrawBundle] = {}

    def draw(self, worker: str, message: DrawBundle) -> None:
        """Tell a worker its next bundle, if there is one."""
        if self._pool is None or self._pool.epoch != message.epoch:
            self._asks[worker] = message
        elif (answer := self._pool.draw(worker, message)) is not None:
            self._send(worker, answer)

    def _params(self, message: Pull, version: int, blocks: tuple[Array, ...]) -> Params:
        assert isinstance(message, MinibatchPull), message
        at = message.epoch, message.partition, message.clock
        return MinibatchParams(*at, version, blocks, message.unit)

    def prepare(self, message: Prepare) -> None:
        """Freeze the shards."""
        super().prepare(message)
        self._asks.clear()

    def adopt(self, view: View, now_s: float) -> None:
        """Serve under a durable view, and hand out its bundles if partition 0 is here."""
        super().adopt(view, now_s)
        is_here = self.served(0, view.epoch) is not None
        self._pool = BundlePool(self.job, view) if is_here else None
        early, self._asks = self._asks, {}
        for worker, message in early.items():
            if message.epoch == view.epoch:
                self.draw(worker, message)
