"""All-reduce: the machines of a view add up among themselves, and each applies the sum to its replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agileml.application import Replica
from agileml.core.controller.control import Control
from agileml.core.exchange import replicas
from agileml.core.exchange.pause import AllReducePause
from agileml.core.exchange.reducer import Reducer
from agileml.core.node.server import SendTo, Server
from agileml.core.node.sources.stores import Stores
from agileml.core.node.worker import Worker
from agileml.core.protocol.commands import NodeCommand
from agileml.core.protocol.exchange import LiveCopies
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Fetch, Message, Promise, Source
from agileml.core.protocol.view import CutId, View


@dataclass(frozen=True)
class ReplicaExchange:
    """Every machine of a view's group has a replica of all partitions, and serves itself."""

    has_replicas: bool = True

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

    def server(self, me: str, job: Job, send: SendTo, stores: Stores, replica: Replica | None) -> Server:
        return Server(me, job, send, stores, replica)

    def worker(self, me: str, job: Job, send: SendTo, ask: Callable[[NodeCommand], None]) -> Worker:
        return Worker(me, job, send, ask)

    def combiner(
        self,
        me: str,
        job: Job,
        worker: Worker,
        server: Server,
        send: Callable[[str, Message], None],
        ask: Callable[[NodeCommand], None],
    ) -> Reducer:
        return Reducer(me, job, worker, server, send, ask)

    def gate(self, control: Control) -> AllReducePause:
        return AllReducePause(control)
