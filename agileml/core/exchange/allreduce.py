"""All-reduce: the machines of a view add up among themselves, and each applies the sum to its replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agileml.application import Replica
from agileml.core.controller.control import Control
from agileml.core.exchange import replicas, shared_state
from agileml.core.exchange.pause import AllReducePause
from agileml.core.exchange.reducer import Reducer
from agileml.core.node.server import Server
from agileml.core.node.sources.stores import Stores
from agileml.core.node.worker import Worker
from agileml.core.protocol.exchange import LiveCopies, NodeIo, NodeParts
from agileml.core.protocol.messages import Fetch, Promise, Source
from agileml.core.protocol.view import CutId, View


@dataclass(frozen=True)
class ReplicaExchange:
    """Every machine of a view's group has a replica of all partitions, and serves itself."""

    has_replicas: bool = True
    shares_state: bool = False

    def held(self, view: View, node: str) -> Sequence[int]:
        return range(len(view.owner)) if node in view.group else ()

    def server_of(self, view: View, partition: int, worker: str) -> str:
        return worker

    def live_copies(self, view: View, promises: Mapping[str, Promise], committed: CutId) -> LiveCopies:
        return replicas.newest(view, promises, committed)

    def fetches(
        self, view: View, sources: Mapping[int, Source], copies: Mapping[int, Sequence[str]]
    ) -> list[tuple[str, Fetch]]:
        return replicas.fetches(view, sources, copies)

    def parts(self, io: NodeIo, stores: Stores, replica: Replica | None) -> NodeParts:
        server = Server(io, stores, replica)
        worker = Worker(io)
        return NodeParts(server, worker, Reducer(io, worker, server))

    def gate(self, control: Control) -> AllReducePause:
        return AllReducePause(control)


@dataclass(frozen=True)
class SharedStateExchange(ReplicaExchange):
    """The same, and the owner of a partition alone has its part of the optimizer's state (ZeRO stage 1)."""

    shares_state: bool = True

    def live_copies(self, view: View, promises: Mapping[str, Promise], committed: CutId) -> LiveCopies:
        return shared_state.owners(view, promises)

    def fetches(
        self, view: View, sources: Mapping[int, Source], copies: Mapping[int, Sequence[str]]
    ) -> list[tuple[str, Fetch]]:
        return shared_state.fetches(view, sources, copies)
