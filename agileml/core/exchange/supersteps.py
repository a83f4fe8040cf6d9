"""Supersteps: parameter servers to which every minibatch is a step of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agileml.application import Replica
from agileml.core.exchange.parameter_servers import DirectPushes, ServerExchange
from agileml.core.node.server import SendTo, Server
from agileml.core.node.sources.stores import Stores
from agileml.core.node.worker import Worker
from agileml.core.protocol.commands import NodeCommand
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Message
from agileml.core.protocol.superstep_messages import HeardSteps, NextSuperstep, SuperstepFixed
from agileml.core.protocol.view import View
from agileml.core.supersteps.server import SuperstepServer
from agileml.core.supersteps.worker import MinibatchWorker


@dataclass(frozen=True)
class SuperstepExchange(ServerExchange):
    """As parameter servers, with steps of one minibatch each."""

    def server(
        self, me: str, job: Job, send: SendTo, stores: Stores, replica: Replica | None
    ) -> SuperstepServer:
        return SuperstepServer(me, job, send, stores, replica)

    def worker(self, me: str, job: Job, send: SendTo, ask: Callable[[NodeCommand], None]) -> MinibatchWorker:
        return MinibatchWorker(me, job, send, ask)

    def combiner(
        self,
        me: str,
        job: Job,
        worker: Worker,
        server: Server,
        send: SendTo,
        ask: Callable[[NodeCommand], None],
    ) -> SuperstepLinks:
        assert isinstance(worker, MinibatchWorker) and isinstance(server, SuperstepServer)
        return SuperstepLinks(me, worker, server)


class SuperstepLinks(DirectPushes):
    """Hands on what workers, the owner of partition 0 and the controller say of supersteps."""

    def __init__(self, me: str, worker: MinibatchWorker, server: SuperstepServer) -> None:
        super().__init__(me, server)
        self._worker, self._steps = worker, server
        self._epoch = 0

    def adopt(self, view: View) -> None:
        """A view is in force: its steps are to be told."""
        self._epoch = view.epoch

    def superstep(
        self, sender: str, message: NextSuperstep | SuperstepFixed | HeardSteps, now_s: float
    ) -> None:
        """A message of the promised epoch; a worker obeys no plan of an epoch whose view it does not know."""
        match message:
            case NextSuperstep():
                self._steps.next_superstep(sender, message, now_s)
            case HeardSteps():
                self._steps.heard_steps(message)
            case SuperstepFixed() if message.epoch == self._epoch:
                self._worker.planned(message.plan)

    def reports(self) -> Iterator[Message]:
        """The steps that the log may lack."""
        return self._steps.reports(self._epoch)
