"""The worker of a machine with supersteps: goes through its minibatches one by one, then asks for more.

For each minibatch it pulls the newest parameters, computes, and pushes to every partition, where the pull of the next
one follows. When all have counted its last one of a superstep it asks the owner of partition 0 for the next, and gets
the answer once the minibatches of all workers are counted. A membership change ends the superstep: nothing that was
read under an older view counts in the new one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agileml.core.node.piecewise import Piece, PiecewiseWorker
from agileml.core.protocol.commands import Begin, Computed
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.messages import Behind, MinibatchParams, MinibatchPush
from agileml.core.protocol.superstep_messages import NextSuperstep, SuperstepPlan
from agileml.core.protocol.supersteps import SuperstepDeal
from agileml.core.protocol.view import View


@dataclass
class _Minibatch(Piece):
    """The minibatch under way. `after`: where its superstep begins. `reads`: of each partition that is here, how many
    steps it had taken."""

    after: int = 0
    reads: dict[int, int] = field(default_factory=dict)


class MinibatchWorker(PiecewiseWorker[_Minibatch]):
    """Computes one minibatch at a time."""

    def __init__(self, io: NodeIo) -> None:
        super().__init__(io)
        self._supersteps: SuperstepDeal | None = None  # of the view
        self._first = 0  # where the superstep begins that is not known yet
        self._after = 0  # where the present one began
        self._todo: list[int] = []  # positions of this superstep

    @property
    def _wants_more(self) -> bool:
        found = self._supersteps
        return found is not None and self.me in found.workers and self._first < found.end

    def adopt(self, view: View) -> None:
        """Go on under a new view, from its first minibatch."""
        if self._now is not None and self._now.order is not None:
            self._now.order.cursor.abort()
        self._view, self._mine = view, tuple(range(self.job.layout.partitions))
        self._supersteps = SuperstepDeal(self.job, view)
        self._first, self._todo, self._now = self._supersteps.first, [], None
        self._pushed.clear()
        self.clock = view.base
        self._go_on()

    def planned(self, plan: SuperstepPlan) -> None:
        """Take the next superstep, or one after those in which this worker has nothing."""
        if plan.first < self._first:
            return  # told again
        assert self._supersteps is not None
        assert self._now is None and not self._todo and not self._pushed, (plan, self._todo)
        self._todo = list(self._supersteps.deal(plan)[self.me])
        self._after, self._first = plan.first, self._supersteps.after(plan)
        self._go_on()

    def _go_on(self) -> None:
        """Begin the next minibatch, or ask for the next superstep once all of this one are counted."""
        if not self._todo:
            if self._wants_more and not self._pushed:
                self._send(self._server_of(0), NextSuperstep(self._view_now.epoch, self._first))
            return
        self.clock, unit = divmod(self._todo.pop(0), self.job.units)
        begin = Begin(self.job.timeline_of(self._view_now), self.clock, (1 << unit,))
        self._take_up(_Minibatch(begin, after=self._after))

    def _note_version(self, now: _Minibatch, message: MinibatchParams) -> None:
        assert message.version >= now.after, (
            f"partition {message.partition} has steps of the superstep before to come"
        )
        now.reads[message.partition] = message.version

    def computed(self, event: Computed) -> None:
        """Push the contributions of the minibatch; that to partition 0 last, where it tells how long all of it took."""
        now = self._now
        if now is None or now.order is None or event.timeline != now.begin.timeline:
            return
        if (event.clock, event.bundle) != now.key:
            return
        for partition, contribution in event.contributions:
            now.contributions[partition] = contribution
            if partition != 0:
                self._push_piece(now, partition)
        if len(now.contributions) == len(self._mine):
            self._push_piece(now, 0)
            self._pushed[now.key] = now
            self._now = None
            self._go_on()

    def _push_piece(self, piece: _Minibatch, partition: int) -> None:
        if partition == 0 and len(piece.contributions) < len(self._mine):
            return
        reads = tuple(piece.reads[each] for each in self._mine)
        about = self._view_now.epoch, partition, *piece.key, piece.contributions[partition]
        self._send(self._server_of(partition), MinibatchPush(*about, reads=reads))

    def behind(self, message: Behind) -> None:
        raise AssertionError(f"no superstep is over before its workers are done: {message}")
