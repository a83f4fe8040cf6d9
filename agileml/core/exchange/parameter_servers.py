"""Parameter servers: workers push to the owners of the partitions, which add up and apply; workers pull from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agileml.application import Replica
from agileml.core.controller.control import Control
from agileml.core.node.server import Server
from agileml.core.node.sources.stores import Stores
from agileml.core.node.worker import Worker
from agileml.core.protocol.exchange import ChangeGate, Combiner, LiveCopies, NodeIo, NodeParts
from agileml.core.protocol.messages import Fetch, Promise, Push, Role, Source
from agileml.core.protocol.view import CutId, View


@dataclass(frozen=True)
class ServerExchange:
    """The owner of a partition has its only live copy."""

    has_replicas: bool = False
    shares_state: bool = False

    def held(self, view: View, node: str) -> Sequence[int]:
        return view.partitions_of(node)

    def server_of(self, view: View, partition: int, worker: str) -> str:
        return view.owner[partition]

    def live_copies(self, view: View, promises: Mapping[str, Promise], committed: CutId) -> LiveCopies:
        """The frozen shards of the durable view: of each partition only its owner's copy counts."""
        found = {}
        for partition, owner in enumerate(view.owner):
            promise = promises.get(owner)
            for p, state in promise.shards if promise else ():
                if p == partition:
                    found[partition] = (state, [owner])
        return found

    def fetches(
        self, view: View, sources: Mapping[int, Source], copies: Mapping[int, Sequence[str]]
    ) -> list[tuple[str, Fetch]]:
        return [
            (owner, Fetch(view.epoch, p, Role.OWNER, view.committed, sources[p]))
            for p, owner in enumerate(view.owner)
        ]

    def parts(self, io: NodeIo, stores: Stores, replica: Replica | None) -> NodeParts:
        server = Server(io, stores, replica)
        return NodeParts(server, Worker(io), DirectPushes(io.me, server))

    def gate(self, control: Control) -> ChangeGate:
        return ChangeGate()


class DirectPushes(Combiner):
    """Hands every push to the server on this machine. There is no group, so nothing pauses or breaks."""

    def __init__(self, me: str, server: Server) -> None:
        self._me = me
        self._server = server

    def push(self, sender: str, message: Push, now_s: float) -> None:
        """Count a bundle. Only arrays from another machine may be overwritten."""
        self._server.push(sender, message, now_s, given=sender != self._me)
