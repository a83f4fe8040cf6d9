"""A server of partitions where every minibatch is a step; that of partition 0 holds back workers that are early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from agileml.application import Replica
from agileml.core.node.server import Server
from agileml.core.node.shard.shard import Shard
from agileml.core.node.sources.stores import Stores
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.messages import (
    CONTROLLER,
    Ack,
    Message,
    MinibatchParams,
    MinibatchPull,
    MinibatchPush,
    Missed,
    NameCut,
    Prepare,
    Pull,
    Push,
)
from agileml.core.protocol.superstep_messages import (
    NextSuperstep,
    StepsReceived,
    StepsTaken,
    SuperstepChosen,
    SuperstepFixed,
)
from agileml.core.protocol.view import CutId, View
from agileml.core.supersteps.planner import SuperstepPlanner
from agileml.core.supersteps.shard import MinibatchShard
from straggler.consistency import Read
from straggler.coverage import Verdict

MOST_TOLD = 512  # steps in a message to the controller


class SuperstepServer(Server):
    """As a `Server`, with supersteps for clocks: the owner of partition 0 says which is next, and when."""

    shard_kind: type[Shard] = MinibatchShard

    def __init__(self, io: NodeIo, stores: Stores, replica: Replica | None = None) -> None:
        super().__init__(io, stores, replica)
        self._planner: SuperstepPlanner | None = None  # of the view, where partition 0 is here
        self._asks: dict[str, NextSuperstep] = {}  # by worker, unanswered

    # -- workers --------------------------------------------------------------------------------------------

    def pull(self, worker: str, message: Pull) -> None:
        """Answer a pull at once: a worker learns of a superstep only once all minibatches before it are counted."""
        assert isinstance(message, MinibatchPull), message
        shard = self._steps_of(message.partition, message.epoch)
        if shard is None:
            return
        found = shard.read(message.clock, message.rows)
        assert not isinstance(found, Read), found
        answer = message.epoch, message.partition, message.clock, shard.steps, found[1], message.unit
        self._send(worker, MinibatchParams(*answer))

    def _steps_of(self, partition: int, epoch: int) -> MinibatchShard | None:
        shard = self.served(partition, epoch)
        assert shard is None or isinstance(shard, MinibatchShard), shard
        return shard

    def push(self, worker: str, message: Push, now_s: float, *, given: bool) -> None:
        """Take the step of a minibatch, unless it is taken already, and acknowledge it."""
        assert isinstance(message, MinibatchPush), message
        shard = self._steps_of(message.partition, message.epoch)
        if shard is None:
            return
        before = shard.version
        verdict = shard.take(message, now_s, given=given)
        if verdict is Verdict.COUNT and message.partition == 0 and self._planner is not None:
            self._planner.counted(worker, now_s)
        self._send(worker, Ack(message.epoch, message.partition, message.clock, message.bundle))
        self._went_on(message.epoch, message.partition, shard, before, now_s)

    # -- supersteps -----------------------------------------------------------------------------------------

    def next_superstep(self, worker: str, message: NextSuperstep, now_s: float) -> None:
        """Tell a worker the superstep that begins at a position, once all are done with the one before."""
        self._asks[worker] = message
        if self._is_answered(worker, now_s):
            self._answer_asks(now_s)

    def _is_answered(self, worker: str, now_s: float) -> bool:
        """Answer what a worker asked last, if its superstep may begin now. True if so."""
        message = self._asks[worker]
        planner, shard = self._planner, self._steps_of(0, message.epoch)
        if planner is None or shard is None or planner.epoch != message.epoch:
            return False  # this machine does not know the view yet
        stop = min(self.limit, self.job.clocks, *self._cut_clocks) * self.job.units
        plan = planner.plan(worker, message.first, stop, now_s)
        if plan is None:
            return False
        del self._asks[worker]
        self._send(worker, SuperstepFixed(message.epoch, plan))
        return True

    def _answer_asks(self, now_s: float) -> None:
        """Answer all that can be answered, each once: an answer may fix the superstep for which others wait."""
        while sum(self._is_answered(worker, now_s) for worker in list(self._asks)):
            pass

    @property
    def _cut_clocks(self) -> list[int]:
        """The clock of the next cut, where all must meet; nothing once it is taken."""
        shard = self._steps_of(0, self._planner.epoch) if self._planner is not None else None
        return [shard.cut_at.clock] if shard is not None and shard.cut_at is not None else []

    def name_cut(self, message: NameCut) -> None:
        """Record the committed cut and get ready for the next one, if all can meet at its clock."""
        planner, clock = self._planner, message.next
        if planner is not None and planner.epoch == message.epoch and clock is not None:
            shard = self._steps_of(0, planner.epoch)
            is_known = shard is not None and (
                any(name == CutId(clock, message.epoch) for name in shard.cuts.known)
                or (shard.cut_at is not None and shard.cut_at.clock == clock)
            )
            if not is_known and not planner.meets_at(clock):
                super().name_cut(replace(message, next=None))
                self._send(CONTROLLER, Missed(message.epoch, 0, clock, planner.version))
                return
        super().name_cut(message)

    def raise_limit(self, limit: int, now_s: float) -> None:
        """Let clocks < `limit` start."""
        super().raise_limit(limit, now_s)
        self._answer_asks(now_s)

    def _tell_superstep(self, chosen: SuperstepChosen) -> None:
        self._send(CONTROLLER, chosen)

    # -- the log --------------------------------------------------------------------------------------------

    def reports(self, epoch: int) -> Iterator[Message]:
        """The steps that the log may lack."""
        for partition, shard in self._shards(epoch).items():
            assert isinstance(shard, MinibatchShard), shard
            yield self._report(epoch, partition, shard)

    def _report(self, epoch: int, partition: int, shard: MinibatchShard) -> StepsTaken:
        return StepsTaken(epoch, partition, *shard.kept.unsent(MOST_TOLD), kept=shard.kept.first)

    def steps_received(self, message: StepsReceived) -> None:
        """Go on from what the controller has received, and drop what the log has.

        A whole message of further steps follows at once: there may be many between two heartbeats.
        """
        if (shard := self._steps_of(message.partition, message.epoch)) is None:
            return
        before, _ = shard.kept.unsent(0)
        shard.kept.acknowledged(message.received, message.written)
        report = self._report(message.epoch, message.partition, shard)
        # Not after an answer that says nothing new: each repeat would begin a row of messages of its own.
        if report.first > before and len(report.taken) == MOST_TOLD:
            self._send(CONTROLLER, report)

    # -- changes --------------------------------------------------------------------------------------------

    def prepare(self, message: Prepare) -> None:
        """Freeze the shards."""
        super().prepare(message)
        self._asks.clear()

    def adopt(self, view: View, now_s: float) -> None:
        """Serve under a durable view, and plan its supersteps if partition 0 is here."""
        super().adopt(view, now_s)
        known = self._planner.intervals_ns if self._planner is not None else {}
        is_here = self.served(0, view.epoch) is not None
        self._planner = SuperstepPlanner(self.job, view, self._tell_superstep, known) if is_here else None
        self._asks = {worker: ask for worker, ask in self._asks.items() if ask.epoch == view.epoch}
        self._answer_asks(now_s)
