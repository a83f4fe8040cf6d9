"""Stages of a pipeline: parameter servers whose machines compute with some partitions alone, and pass units on.

The machines of a stage are its replicas: they own its partitions, and each computes its units with all of them. A
machine sends a message to its neighbour again until the neighbour answers. It counts nothing: only pushes do, and those
are the parameter servers'.

Before a change that can wait, the first stage is asked to begin no other clock: the owner of partition 0, which all its
machines read, holds back the first clock that none of them has read. The units under way run through all stages and
back, and the change then finds every partition after the same clock, and nothing under way.
"""

from __future__ import annotations

from dataclasses import dataclass

from agileml.application import Replica
from agileml.core.async_stages.worker import AsyncStageWorker
from agileml.core.controller.control import Control
from agileml.core.exchange.parameter_servers import DirectPushes, ServerExchange
from agileml.core.exchange.pause import AsyncStagePause, StagePause
from agileml.core.node.server import Server
from agileml.core.node.sources.stores import Stores
from agileml.core.node.worker import Worker
from agileml.core.protocol.commands import Arrange, Crossed, PassOn
from agileml.core.protocol.exchange import NodeIo, NodeParts
from agileml.core.protocol.messages import Crossing, CrossingAck
from agileml.core.protocol.view import View
from straggler.coverage import union


@dataclass(frozen=True)
class StageExchange(ServerExchange):
    """As parameter servers; every owner is a stage."""

    def parts(self, io: NodeIo, stores: Stores, replica: Replica | None) -> NodeParts:
        server = Server(io, stores, replica)
        worker = Worker(io)
        return NodeParts(server, worker, StageLinks(io, worker, server))

    def gate(self, control: Control) -> StagePause:
        return StagePause(control)


@dataclass(frozen=True)
class AsyncStageExchange(StageExchange):
    """The same without a flush: several clocks are in flight."""

    def parts(self, io: NodeIo, stores: Stores, replica: Replica | None) -> NodeParts:
        server = Server(io, stores, replica)
        worker = AsyncStageWorker(io)
        return NodeParts(server, worker, AsyncStageLinks(io, worker, server))

    def gate(self, control: Control) -> AsyncStagePause:
        return AsyncStagePause(control)


class StageLinks(DirectPushes):
    """The messages of this machine's stage to its neighbours, sent until they answer; and whether it has paused."""

    def __init__(self, io: NodeIo, worker: Worker, server: Server) -> None:
        super().__init__(io.me, server)
        self._worker, self._send, self._ask = worker, io.send, io.ask
        self._epoch = self._base = self._least = 0
        self._is_first = self._is_asked = False  # the owner of partition 0; asked to pause
        self._unanswered: dict[tuple[int, int, bool], tuple[str, Crossing]] = {}

    def prepare(self) -> None:
        """Send nothing more of the clock under way: after the change it is computed again."""
        self._unanswered.clear()

    def adopt(self, view: View) -> None:
        """Tell the computation the stages of the view."""
        self._epoch, self._base = view.epoch, view.base
        self._least = max((clock for clock, _ in view.open), default=view.base - 1) + 1
        self._is_first, self._is_asked = view.owner[0] == self._me, False
        is_open = tuple((clock, union(bundle for _, bundle in dealt)) for clock, dealt in view.open)
        self._ask(Arrange(view.epoch, view.pipeline, is_open))

    @property
    def is_paused(self) -> bool:
        """True once this machine has been asked to pause; at the owner of partition 0, once it has also applied all
        clocks that were begun."""
        if not self._is_asked or not self._is_first:
            return self._is_asked
        version, hold = self._server.version(0, self._epoch), self._server.hold
        return version is not None and hold is not None and version >= hold

    def pause(self) -> None:
        """Begin no clock that no machine has read yet, except the view's open clocks."""
        if self._is_first and not self._is_asked:
            self._server.hold = max(self._server.read_up_to + 1, self._least)
        self._is_asked = True

    def crossed(self, event: Crossed) -> None:
        """Send a neighbouring stage what this one computed for it."""
        message = event.crossing
        if message.epoch == self._epoch:
            self._unanswered[message.clock, message.unit, message.is_forward] = event.to, message
            self._send(event.to, message)

    def crossing(self, sender: str, message: Crossing | CrossingAck) -> None:
        """Hand on a message of a neighbouring stage, which may know the view before this machine does."""
        if isinstance(message, CrossingAck):
            self._unanswered.pop((message.clock, message.unit, message.is_forward), None)
            return
        self._send(sender, CrossingAck(message.epoch, message.clock, message.unit, message.is_forward))
        self._ask(PassOn(message))

    def resend(self) -> None:
        """Send again the messages that no neighbour has answered."""
        for to, message in self._unanswered.values():
            self._send(to, message)


class AsyncStageLinks(StageLinks):
    """The same without a flush: the first stage stops with clocks in flight, which run through."""

    def __init__(self, io: NodeIo, worker: AsyncStageWorker, server: Server) -> None:
        super().__init__(io, worker, server)
        self._job, self._steps = io.job, worker

    @property
    def is_paused(self) -> bool:
        """As with a flush."""
        if not self._is_asked or not self._is_first:
            return self._is_asked
        return self._server.version(0, self._epoch) == self._server.end

    def pause(self) -> None:
        """Begin no clock that reads a version which no machine has yet. The limit of clocks does not hold for units in
        flight."""
        if self._is_first and not self._is_asked:
            read = self._server.read_up_to
            begun = self._base if read < 0 else read + self._steps.lag + 1
            self._server.end = min(begun, self._job.clocks)
            self._server.raise_limit(self._job.clocks, 0.0)
        self._is_asked = True
