"""The worker of a node: which bundles of which clock to compute, and how long to keep their contributions.

In each clock the worker finds out which rows its bundles read, pulls them from every partition, computes, pushes to
every partition, and goes on when all partitions have acknowledged. It keeps a contribution until then, so that a
membership change in between needs no second computation, and drops it when a rollback starts another timeline.

As soon as it has computed a clock, the worker pulls the parameters of the next one. A server answers when it has them;
an answer with a later version also acknowledges the contributions to that partition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agileml.application import Array
from agileml.core.node.piggyback import can_piggyback
from agileml.core.node.time_spent import Doing
from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.commands import Begin, Begun, Compute, Computed, NodeCommand
from agileml.core.protocol.deal import Deal
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Ack, Behind, Message, Params, Pull, Push
from agileml.core.protocol.view import View
from straggler.coverage import Units


@dataclass
class _Kept:
    """The contributions of a bundle that are computed, by partition, and the partitions that have counted them."""

    contributions: dict[int, Contribution] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)


@dataclass
class _Reading:
    """A clock whose parameters are on their way."""

    begin: Begin
    rows: tuple[tuple[Array | None, ...], ...] | None = None
    parts: dict[int, tuple[Array, ...]] = field(default_factory=dict)


class Worker:
    """Goes through the clocks of a view, without waiting for other workers or the controller."""

    def __init__(
        self, me: str, job: Job, send: Callable[[str, Message], None], ask: Callable[[NodeCommand], None]
    ) -> None:
        self.me = me
        self.job = job
        self.clock = 0
        self._partitions = job.layout.partitions
        self._reads_all = job.layout.whole_reads
        self._piggybacks = can_piggyback(job)
        self._send = send
        self._ask = ask
        self._view: View | None = None
        self._deal: Deal | None = None  # of the view
        self._kept: dict[tuple[int, Units], _Kept] = {}
        self._computing: set[tuple[int, Units]] = set()  # of this timeline, at the shell
        # Of those, bundles to forget, with the number of contributions still to come.
        self._void: dict[tuple[int, Units], int] = {}
        self._reading: dict[int, _Reading] = {}  # by clock: this one, and the next one ahead
        # Blocks that were pulled under the view before, by clock and partition.
        self._carried: dict[int, dict[int, tuple[Array, ...]]] = {}

    @property
    def doing(self) -> Doing:
        """The present activity of the worker."""
        if self._computing:
            return Doing.COMPUTE
        if self.clock in self._reading or (self._piggybacks and self.clock + 1 in self._reading):
            return Doing.PULL  # the push itself takes a moment, the parameters that it asks for may take long
        return Doing.PUSH if self._kept else Doing.IDLE

    def adopt(self, view: View) -> None:
        """Go on under a new view, from its base clock."""
        if self._view is None or view.timeline != self._view.timeline:
            self._kept.clear()
            self._computing.clear()
            self._void.clear()
            self._carried.clear()
        else:
            self._carry()
        self._view = view
        self._deal = Deal(self.job, view)
        self.clock = view.base
        self._reading.clear()
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] >= view.base}
        self._start()

    def _carry(self) -> None:
        """Keep the whole blocks that were pulled: they are the same under every view of a timeline.

        The blocks are copied, because an older clock may come first now, and its parameters will overwrite the buffer.
        """
        if self.job.exchange.has_replicas:
            return
        for clock, reading in self._reading.items():
            if reading.rows is None:
                continue
            carried = self._carried.setdefault(clock, {})
            for partition, blocks in reading.parts.items():
                if all(rows is None for rows in reading.rows[partition]):
                    carried[partition] = tuple(block.copy() for block in blocks)

    def bundles(self, clock: int) -> tuple[Units, ...]:
        """The bundles of a clock that the present view deals to this worker."""
        assert self._deal is not None
        return self._deal.bundles(clock, self.me)

    def _server_of(self, partition: int) -> str:
        """The node to pull a partition from and to push its contributions to."""
        assert self._view is not None
        return self.job.exchange.server_of(self._view, partition, self.me)

    def forget(self, clock: int, bundle: Units) -> None:
        """Drop the contributions of a bundle, whose arrays were overwritten. It is computed again if it is still
        dealt."""
        key = (clock, bundle)
        kept = self._kept.pop(key, None)
        if key in self._computing and key not in self._void:
            self._void[key] = self._partitions - (len(kept.contributions) if kept else 0)

    def _start(self) -> None:
        """Begin the next clock in which this worker has bundles."""
        assert self._view is not None
        last_open = max(self._view.open_at, default=-1)
        while not (bundles := self.bundles(self.clock)):
            if self.clock > last_open:
                return  # the view deals nothing to this worker
            self.clock += 1
        if self.clock >= self.job.clocks:
            return
        for bundle in bundles:
            if (kept := self._kept.get((self.clock, bundle))) is not None:
                self._push(bundle, kept)
        if not self._begin(self.clock):
            self._look_ahead()
            self._go_on()

    def _begin(self, clock: int) -> bool:
        """Start reading for the bundles of a clock that are neither computed nor being computed. False: there are
        none."""
        assert self._view is not None
        missing = tuple(
            bundle
            for bundle in self.bundles(clock)
            if (clock, bundle) not in self._kept and (clock, bundle) not in self._computing
        )
        if missing and clock not in self._reading:
            begin = Begin(self._view.timeline, clock, missing)
            self._reading[clock] = _Reading(begin)
            if self._reads_all is None:
                self._ask(begin)
            else:
                self.begun(Begun(begin, self._reads_all))
        return bool(missing)

    def begun(self, event: Begun) -> None:
        """The rows that the bundles read are known: pull them."""
        reading = self._reading.get(event.begin.clock)
        if reading is not None and reading.begin == event.begin:
            reading.rows = event.rows
            for partition, blocks in self._carried.pop(event.begin.clock, {}).items():
                if all(rows is None for rows in event.rows[partition]):
                    reading.parts[partition] = blocks
            self._pull(reading)
            self._compute()

    def _pull(self, reading: _Reading) -> None:
        assert self._view is not None
        if reading.rows is None:
            return
        for partition, rows in enumerate(reading.rows):
            if partition not in reading.parts:
                owner = self._server_of(partition)
                self._send(owner, Pull(self._view.epoch, partition, reading.begin.clock, rows))

    def params(self, message: Params) -> None:
        """Take the blocks of one partition. Computing starts when the last partition is here."""
        reading = self._reading.get(message.clock)
        if reading is None or reading.rows is None or message.partition in reading.parts:
            return
        reading.parts[message.partition] = message.blocks
        if message.version > self.clock and message.clock > self.clock:
            for bundle in self.bundles(self.clock):
                if (kept := self._kept.get((self.clock, bundle))) is not None:
                    kept.acked.add(message.partition)
            self._go_on()
        self._compute()

    def _compute(self) -> None:
        """Start to compute this clock if all its parameters are here."""
        reading = self._reading.get(self.clock)
        if reading is None or len(reading.parts) < self._partitions:
            return
        del self._reading[self.clock]
        begin = reading.begin
        self._computing |= {(begin.clock, bundle) for bundle in begin.bundles}
        parts = tuple(reading.parts[p] for p in range(self._partitions))
        self._ask(Compute(begin.timeline, begin.clock, begin.bundles, parts))
        self._begin(begin.clock)  # bundles that were forgotten meanwhile

    def behind(self, message: Behind) -> None:
        """The clock is done everywhere without this worker: go on to the next."""
        if message.clock == self.clock:
            self._leave_clock()
        elif message.clock > self.clock:
            self._reading.pop(message.clock, None)  # it is pulled again when it is the current clock

    def computed(self, event: Computed) -> None:
        """Push the contributions of a bundle if the view still deals it to this worker."""
        if self._view is None or event.timeline != self._view.timeline:
            return
        key = (event.clock, event.bundle)
        if key in self._void:
            self._void[key] -= len(event.contributions)
            if not self._void[key]:
                del self._void[key]
                self._computing.discard(key)
                self._begin(self.clock)
            return
        if event.clock < self.clock or event.bundle not in self.bundles(event.clock):
            # Drop the partitions that came before as well: a bundle that is dealt again later is computed whole.
            self._computing.discard(key)
            self._kept.pop(key, None)
            return
        kept = self._kept.setdefault(key, _Kept())
        for partition, contribution in event.contributions:
            kept.contributions[partition] = contribution
            if event.clock == self.clock:
                self._push_one(event.bundle, partition, contribution)
        if len(kept.contributions) == self._partitions:
            self._computing.discard(key)
            self._look_ahead()

    def _look_ahead(self) -> None:
        """Pull the parameters of the next clock once all of this one is computed."""
        for bundle in self.bundles(self.clock):
            kept = self._kept.get((self.clock, bundle))
            if kept is None or len(kept.contributions) < self._partitions:
                return
        if self.clock + 1 < self.job.clocks:
            self._begin(self.clock + 1)

    def _push(self, bundle: Units, kept: _Kept) -> None:
        for partition, contribution in kept.contributions.items():
            if partition not in kept.acked:
                self._push_one(bundle, partition, contribution)

    def _push_one(self, bundle: Units, partition: int, contribution: Contribution) -> None:
        assert self._view is not None
        owner = self._server_of(partition)
        self._send(owner, Push(self._view.epoch, partition, self.clock, bundle, contribution))

    def ack(self, message: Ack) -> None:
        """A partition has counted a bundle."""
        kept = self._kept.get((message.clock, message.bundle))
        if kept is not None:
            kept.acked.add(message.partition)
            if message.clock == self.clock:
                self._go_on()

    def _go_on(self) -> None:
        """Go on to the next clock once every partition has every bundle of this one."""
        bundles = self.bundles(self.clock)
        for bundle in bundles:
            kept = self._kept.get((self.clock, bundle))
            if kept is None or len(kept.acked) < self._partitions:
                return
        if bundles:
            self._leave_clock()

    def _leave_clock(self) -> None:
        self._reading.pop(self.clock, None)
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] > self.clock}
        self._carried.pop(self.clock, None)
        self.clock += 1
        self._start()
        self._compute()

    def resend(self) -> None:
        """Repeat every unanswered pull and push."""
        if self._view is None:
            return
        for reading in self._reading.values():
            self._pull(reading)
        for bundle in self.bundles(self.clock):
            if (kept := self._kept.get((self.clock, bundle))) is not None:
                self._push(bundle, kept)
