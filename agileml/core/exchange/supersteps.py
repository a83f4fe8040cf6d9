"""Supersteps: parameter servers to which every minibatch is a step of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agileml.application import Replica
from agileml.core.exchange.parameter_servers import DirectPushes, ServerExchange
from agileml.core.node.sources.stores import Stores
from agileml.core.protocol.exchange import NodeIo, NodeParts
from agileml.core.protocol.messages import Message
from agileml.core.protocol.superstep_messages import NextSuperstep, StepsReceived, SuperstepFixed
from agileml.core.protocol.view import View
from agileml.core.supersteps.server import SuperstepServer
from agileml.core.supersteps.worker import MinibatchWorker


@dataclass(frozen=True)
class SuperstepExchange(ServerExchange):
    """As parameter servers, with steps of one minibatch each."""

    def parts(self, io: NodeIo, stores: Stores, replica: Replica | None) -> NodeParts:
        server = SuperstepServer(io, stores, replica)
        worker = MinibatchWorker(io)
        return NodeParts(server, worker, SuperstepLinks(io.me, worker, server))


class SuperstepLinks(DirectPushes):
    """Hands on what workers, the owner of partition 0 and the controller say of supersteps."""

    def __init__(self, me: str, worker: MinibatchWorker, server: SuperstepServer) -> None:
        super().__init__(me, server)
        self._worker, self._steps = worker, server
        self._epoch = 0

    def adopt(self, view: View) -> None:
        """Go on under a view: report its steps, and hand on only its plans."""
        self._epoch = view.epoch

    def superstep(
        self, sender: str, message: NextSuperstep | SuperstepFixed | StepsReceived, now_s: float
    ) -> None:
        """Hand on a message of the promised epoch; a plan only if the worker knows the view."""
        match message:
            case NextSuperstep():
                self._steps.next_superstep(sender, message, now_s)
            case StepsReceived():
                self._steps.steps_received(message)
            case SuperstepFixed() if message.epoch == self._epoch:
                self._worker.planned(message.plan)

    def reports(self) -> Iterator[Message]:
        """The steps that the log may lack."""
        return self._steps.reports(self._epoch)
