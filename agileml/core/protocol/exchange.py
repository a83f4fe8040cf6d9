"""The interface of an exchange: how the contributions of a clock come together, and which machines hold the parameters.

`agileml.core.exchange` holds them. With parameter servers, workers push to the owner of each partition and
pull from it. With an all-reduce, the machines of a view add up among themselves and each applies the sum to a replica
of all partitions; the owner of a partition is then the machine whose replica is backed up and copied from first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agileml.application import Replica
from agileml.core.protocol.commands import Broken, Crossed, Gathered, Met, NodeCommand, Reduced
from agileml.core.protocol.messages import (
    Crossing,
    CrossingAck,
    Fetch,
    GroupFailed,
    Meet,
    Message,
    Promise,
    Push,
    ShardState,
    Source,
    SourceKind,
)
from agileml.core.protocol.pool_messages import BundleDrawn, DrawBundle
from agileml.core.protocol.superstep_messages import NextSuperstep, StepsReceived, SuperstepFixed
from agileml.core.protocol.view import CutId, View
from agileml.events.terms import Trigger

if TYPE_CHECKING:
    from agileml.core.controller.control import Control
    from agileml.core.node.server import Server
    from agileml.core.node.sources.stores import Stores
    from agileml.core.node.worker import Worker
    from agileml.core.protocol.job import Job

# By partition, its state and the nodes that have it.
LiveCopies = Mapping[int, tuple[ShardState, Sequence[str]]]


class Combiner:
    """Stands behind one machine's worker: decides where its contributions go. What an exchange does not need does
    nothing."""

    @property
    def is_paused(self) -> bool:
        """True while this machine has stopped between two clocks because a change is to come."""
        return False

    def prepare(self) -> None:
        """Stop the work under way, because a change begins."""

    def adopt(self, view: View) -> None:
        """Go on under a view, which the server and the worker know already."""

    def push(self, sender: str, message: Push, now_s: float) -> None:
        """Take a bundle that a worker has pushed."""
        raise NotImplementedError

    def pause(self) -> None:
        """Stop after a clock, as the controller asks the machines at work to."""

    def meet(self, message: Meet) -> None:
        """Take another machine's entry for the rendezvous."""

    def met(self, event: Met) -> None:
        """Send this machine's entry for the rendezvous to the group."""

    def crossed(self, event: Crossed) -> None:
        """Send a neighbouring stage what this one computed for it."""

    def crossing(self, sender: str, message: Crossing | CrossingAck) -> None:
        """Take a message of a neighbouring stage, or its answer to one."""

    def reduced(self, event: Reduced, now_s: float) -> None:
        """Take the sum of a partition over the group."""

    def broken(self, event: Broken) -> None:
        """Tell the controller that the group cannot add up any more."""

    def gathered(self, event: Gathered, now_s: float) -> None:
        """Go on with the values that the other machines of the group have stepped."""

    def superstep(
        self, sender: str, message: NextSuperstep | SuperstepFixed | StepsReceived, now_s: float
    ) -> None:
        """Take a message about supersteps, or about the log of their steps."""

    def drawn(self, sender: str, message: DrawBundle | BundleDrawn) -> None:
        """Take a message about the pool of bundles."""

    def reports(self) -> Iterable[Message]:
        """The messages to send to the controller with every heartbeat."""
        return ()

    def resend(self) -> None:
        """Send unanswered messages again."""


@dataclass(frozen=True)
class NodeIo:
    """How the parts of the machine `me` reach others (`send`) and their own process (`ask`)."""

    me: str
    job: Job
    send: Callable[[str, Message], None]
    ask: Callable[[NodeCommand], None]


@dataclass(frozen=True)
class NodeParts:
    """A machine's server, its worker, and what stands behind the worker."""

    server: Server
    worker: Worker
    combiner: Combiner


class ChangeGate:
    """Tells the controller when a membership change may begin. With parameter servers at once, because a push that it
    interrupts is sent again."""

    def settle(self, trigger: Trigger | None, move_s: Callable[[], float]) -> Trigger | None:
        """The reason for a change that may begin now; None while there is no reason, or the change must wait.

        `move_s`: the seconds that copying what leavers hold is expected to take.
        """
        return trigger

    def failed(self, node: str, message: GroupFailed) -> None:
        """Record that a machine's group cannot add up any more."""

    def resend(self) -> None:
        """Send unanswered requests again."""


class Exchange(Protocol):
    """One way in which contributions come together. A job has one, chosen where the job is built."""

    @property
    def has_replicas(self) -> bool:
        """True when every machine of a group holds a copy of every partition, so that reads are local and a leaver
        never has the only copy (but see `shares_state`)."""

    @property
    def shares_state(self) -> bool:
        """True when only the owner of a partition has its part of the optimizer's state."""

    def held(self, view: View, node: str) -> Sequence[int]:
        """The partitions of which a machine has a live copy under a view."""

    def server_of(self, view: View, partition: int, worker: str) -> str:
        """The machine that a worker pulls a partition from and pushes its contributions to."""

    def live_copies(self, view: View, promises: Mapping[str, Promise], committed: CutId) -> LiveCopies:
        """The copies of each partition that a change may start from; a partition without one is left out."""

    def fetches(
        self, view: View, sources: Mapping[int, Source], copies: Mapping[int, Sequence[str]]
    ) -> list[tuple[str, Fetch]]:
        """The fetches that machines must answer before they can serve under `view`. `copies`: the nodes that have each
        source."""

    def parts(self, io: NodeIo, stores: Stores, replica: Replica | None) -> NodeParts:
        """The parts of a machine that depend on the exchange."""

    def gate(self, control: Control) -> ChangeGate:
        """The part of this exchange that runs in the controller."""


def nearest(node: str, source: Source, copies: Sequence[str]) -> Source:
    """The source from which a machine gets a shard that the machines in `copies` have: itself, if it is one of them."""
    return Source(source.kind, node) if source.kind is SourceKind.SHARD and node in copies else source
