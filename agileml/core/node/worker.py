"""The worker of a node: which bundles of which clock to compute, and how long to keep their contributions.

In each clock the worker finds out which rows its bundles read, pulls them from every partition, computes, pushes to
every partition, and goes on when all partitions have acknowledged. It keeps a contribution until then, so that a
membership change in between needs no second computation, and drops it when a rollback starts another timeline.

As soon as it has computed a clock, the worker pulls the parameters of the next one. A server answers when it has them;
an answer with a later version also acknowledges the contributions to that partition. In a planned clock the bundles
themselves may come only with the answer of partition 0 (`protocol.deal`).

Where a worker overlaps, the pull of a partition follows the last push to it, and computing begins when partition 0 is
here. Blocks that come later are delivered to the computation. A new view aborts a computation that still lacks some:
those that came serve again if they are of the same timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from agileml.core.compute.cursor import Cursor
from agileml.core.node.piggyback import can_piggyback
from agileml.core.node.reading import CarriedBlocks, Reading, Rows
from agileml.core.node.time_spent import Doing
from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.commands import Abort, Begin, Begun, Compute, Computed, Deliver, NodeCommand
from agileml.core.protocol.deal import Deal
from agileml.core.protocol.job import Job, Overlap
from agileml.core.protocol.messages import Ack, Behind, Message, Params, PlannedParams, Push, TimedPush
from agileml.core.protocol.view import View
from straggler.coverage import Units


@dataclass
class _Kept:
    """The contributions of a bundle that are computed, by partition, and the partitions that have counted them."""

    contributions: dict[int, Contribution] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    compute_s: float = 0.0


class Worker:
    """Goes through the clocks of a view, without waiting for other workers or the controller."""

    def __init__(
        self, me: str, job: Job, send: Callable[[str, Message], None], ask: Callable[[NodeCommand], None]
    ) -> None:
        self.me = me
        self.job = job
        self.clock = 0
        self.overlaps = job.overlap is Overlap.ON  # may change at any time
        self._mine: tuple[int, ...] = ()  # partitions that this worker reads and pushes
        self._reads_all = job.layout.whole_reads
        self._piggybacks = can_piggyback(job)
        self._is_timed = job.balancer is not None  # pushes tell partition 0 how long they took
        self._send = send
        self._ask = ask
        self._view: View | None = None
        self._deal: Deal | None = None  # under the view
        self._kept: dict[tuple[int, Units], _Kept] = {}
        self._computing: set[tuple[int, Units]] = set()  # at the shell, in this timeline
        self._orders: list[Compute] = []  # computations that may be under way
        # Bundles at the shell that are to be dropped, with the number of contributions still to come.
        self._void: dict[tuple[int, Units], int] = {}
        self._reading: dict[int, Reading] = {}  # by clock: this one, and the next one ahead
        self._carried = CarriedBlocks()
        # With help: whether no unit of a clock is given away and open; called when all clocks up to one are counted.
        self.may_leave: Callable[[int], bool] = lambda clock: True
        self.all_counted: Callable[[int], None] = lambda clock: None
        self._recut: dict[int, tuple[Units, ...]] = {}  # by clock, what is left after giving units away

    @property
    def doing(self) -> Doing:
        """The present activity of the worker."""
        if self._computing:
            return Doing.COMPUTE
        if self.clock in self._reading or (self._piggybacks and self.clock + 1 in self._reading):
            return Doing.PULL  # its push asked for parameters, which take longer than an answer to it
        return Doing.PUSH if self._kept else Doing.IDLE

    def adopt(self, view: View) -> None:
        """Go on under a new view, from its base clock."""
        for reading in self._reading.values():
            self._abort(reading)
        if self._view is None or self.job.line(view) != self.job.line(self._view):
            self._kept.clear()
            self._void.clear()
            self._carried.clear()
        elif not self.job.exchange.has_replicas:
            # With plans partition 0 is asked again: a plan holds in its epoch alone.
            self._carried.carry(self._reading.values(), but=0 if self._is_timed else None)
        for key in [key for key in self._computing if key[0] in self._recut]:
            self._drop(key)
        self._recut.clear()  # the view deals units that were given away anew
        self._view = view
        self._deal = Deal(self.job, view)
        self._mine = self._deal.partitions(self.me)
        self.clock = view.base
        self._reading.clear()
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] >= view.base}
        self._abort_unwanted()
        self._start()

    def _abort_unwanted(self) -> None:
        """Abort computations of which this view wants no bundle from this worker."""
        assert self._view is not None
        orders, self._orders = self._orders, []
        for order in filter(self._is_under_way, orders):
            dealt = self.bundles(order.clock) if order.timeline == self.job.line(self._view) else ()
            if set(order.bundles) & set(dealt or ()):
                self._orders.append(order)
                continue
            order.cursor.abort()
            for bundle in order.bundles:
                self._drop((order.clock, bundle))

    def _drop(self, key: tuple[int, Units]) -> None:
        """Wait no longer for a bundle that is being computed: dealt again later, it is computed whole."""
        if key in self._computing:
            self._computing.discard(key)
            self._kept.pop(key, None)
            self._void.pop(key, None)

    def bundles(self, clock: int) -> tuple[Units, ...] | None:
        """The bundles of a clock that this worker computes under the present view; None while they are not planned."""
        assert self._deal is not None
        return self._recut.get(clock) or self._deal.bundles(clock, self.me)

    def give_away(self, clock: int, kept: tuple[Units, ...]) -> None:
        """Give the tail of this worker's units of a clock to others; it keeps these bundles."""
        before = self.bundles(clock) or ()
        self._recut[clock] = kept
        self._computing -= {(clock, bundle) for bundle in before if bundle not in kept}
        self._computing |= {(clock, bundle) for bundle in kept if bundle not in before}

    def take_back(self, event: Computed) -> None:
        """Contribute a bundle that was given away all the same."""
        self._recut[event.clock] = (*(self.bundles(event.clock) or ()), event.bundle)
        self._computing.add((event.clock, event.bundle))
        self.computed(event)

    def has_computed(self, clock: int) -> bool:
        """True when all bundles of a clock are computed."""
        found = [self._kept.get((clock, bundle)) for bundle in self.bundles(clock) or ()]
        return all(kept is not None and len(kept.contributions) == len(self._mine) for kept in found)

    def _server_of(self, partition: int) -> str:
        """The node to pull a partition from and to push its contributions to."""
        assert self._view is not None
        return self.job.exchange.server_of(self._view, partition, self.me)

    def forget(self, clock: int, bundle: Units) -> None:
        """Drop the contributions of a bundle, whose arrays were overwritten. It is computed again if still dealt."""
        key = (clock, bundle)
        kept = self._kept.pop(key, None)
        if key in self._computing and key not in self._void:
            self._void[key] = len(self._mine) - (len(kept.contributions) if kept else 0)

    def _start(self) -> None:
        """Begin the next clock in which this worker has bundles."""
        assert self._view is not None
        last_open = max(self._view.open_at, default=-1)
        while (bundles := self.bundles(self.clock)) == ():
            if self.clock > last_open:
                return  # the view deals nothing to this worker
            self.clock += 1
        if self.clock >= self.job.clocks:
            return
        for bundle in bundles or ():
            if (kept := self._kept.get((self.clock, bundle))) is not None:
                self._push(bundle, kept)
        if not self._begin(self.clock):
            self._look_ahead()
            self.go_on()

    def _begin(self, clock: int) -> bool:
        """Start reading for the bundles of a clock that are not computed, or being computed. False: there are none."""
        begin = self._missing(clock)
        if begin is not None and not begin.bundles:
            return False
        reading = self._reading.get(clock)
        if reading is None:
            reading = self._reading[clock] = Reading(clock, begin)
            if self._reads_all is not None:
                self._read(reading, self._reads_all)
            else:
                assert begin is not None, f"the plan of clock {clock} should have come a clock ago"
                self._ask(begin)
        elif len(reading.asked) < len(self._mine):
            self._pull(reading, set(self._mine) - reading.asked)
        return True

    def _missing(self, clock: int) -> Begin | None:
        """The bundles of a clock that are neither computed nor being computed; None while it has no plan."""
        assert self._view is not None
        if (bundles := self.bundles(clock)) is None:
            return None
        missing = [b for b in bundles if (clock, b) not in self._kept and (clock, b) not in self._computing]
        return Begin(self.job.line(self._view), clock, tuple(missing))

    def begun(self, event: Begun) -> None:
        """Pull the rows that the bundles read, which are known now."""
        reading = self._reading.get(event.begin.clock)
        if reading is not None and reading.begin == event.begin:
            self._read(reading, event.rows)

    def _read(self, reading: Reading, rows: Rows) -> None:
        reading.choose(rows, self._carried.take(reading.clock))
        self._pull(reading, self._mine)
        self._compute()

    def _pull(self, reading: Reading, partitions: Iterable[int]) -> None:
        assert self._view is not None
        for pull in reading.pulls(self._view.epoch, partitions):
            self._send(self._server_of(pull.partition), pull)

    def params(self, message: Params) -> None:
        """Take the blocks of one partition. Computing starts when the last partition is here."""
        if isinstance(message, PlannedParams):
            assert self._deal is not None
            self._deal.learn(message.plan)
        reading = self._reading.get(message.clock)
        if reading is None or reading.rows is None or message.partition in reading.parts:
            return
        reading.parts[message.partition] = message.blocks
        if (order := reading.order) is not None:
            self._ask(Deliver(order.timeline, order.clock, message.partition, message.blocks))
        if reading.begin is None and message.partition == 0:
            reading.begin = self._missing(reading.clock)
            assert reading.begin is not None, f"clock {reading.clock} came without its plan"
        if message.version > self.clock and message.clock > self.clock:
            for bundle in self.bundles(self.clock) or ():
                if (kept := self._kept.get((self.clock, bundle))) is not None:
                    kept.acked.add(message.partition)
            if len(reading.parts) == len(self._mine) and self.job.consistency.slack == 0:
                self.all_counted(self.clock)
            self.go_on()
        self._compute()

    def _compute(self) -> None:
        """Start to compute this clock if all its parameters are here, or this one or the next if enough are."""
        reading = self._reading.get(self.clock)
        if self.overlaps:
            reading = self._begin_early(reading or self._reading.get(self.clock + 1))
        if reading is None or len(reading.parts) < len(self._mine):
            return
        begin = reading.begin
        assert begin is not None, f"the parameters of clock {reading.clock} are here and its plan is not"
        del self._reading[reading.clock]
        if reading.order is None:
            self._ask_to_compute(reading, begin)
        if begin.clock == self.clock:
            self._begin(begin.clock)  # compute bundles that were forgotten meanwhile

    def _begin_early(self, reading: Reading | None) -> Reading | None:
        """Start to compute with partition 0, where the first layers are, once nothing else is computed."""
        if reading is None or reading.begin is None or reading.order is not None or self._computing:
            return reading
        if 0 in reading.parts and len(reading.parts) < len(self._mine):
            reading.order = self._ask_to_compute(reading, reading.begin)
        return reading

    def _ask_to_compute(self, reading: Reading, begin: Begin) -> Compute:
        self._computing |= {(begin.clock, bundle) for bundle in begin.bundles}
        parts = reading.parts_of(self._mine, self.job.layout.partitions)
        cursor = Cursor(sum(bundle.bit_count() for bundle in begin.bundles))
        order = Compute(begin.timeline, begin.clock, begin.bundles, parts, cursor)
        self._orders = [earlier for earlier in self._orders if self._is_under_way(earlier)] + [order]
        self._ask(order)
        return order

    def _abort(self, reading: Reading | None) -> None:
        """Give up the computation of a clock whose parameters are not all here."""
        if reading is not None and (order := reading.order) is not None:
            self._computing -= {(order.clock, bundle) for bundle in order.bundles}
            order.cursor.abort()
            self._ask(Abort(order.timeline, order.clock))

    def _is_under_way(self, order: Compute) -> bool:
        return any((order.clock, bundle) in self._computing for bundle in order.bundles)

    def behind(self, message: Behind) -> None:
        """Go on to the next clock: this one is done everywhere without this worker."""
        if message.clock == self.clock:
            self.all_counted(self.clock)
            if message.clock == self.clock:
                self._leave_clock()
        elif message.clock > self.clock:
            self._abort(self._reading.pop(message.clock, None))  # pulled again when it is the current clock

    def computed(self, event: Computed) -> None:
        """Push the contributions of a bundle if the view still deals it to this worker."""
        key = (event.clock, event.bundle)
        if self._view is None or event.timeline != self.job.line(self._view) or key not in self._computing:
            return  # of another timeline, or aborted too late
        if key in self._void:
            self._void[key] -= len(event.contributions)
            if not self._void[key]:
                del self._void[key]
                self._computing.discard(key)
                self._begin(self.clock)
                self._compute()
            return
        if event.clock < self.clock or event.bundle not in (self.bundles(event.clock) or ()):
            # Drop the partitions that came before as well: a bundle that is dealt again later is computed whole.
            self._computing.discard(key)
            self._kept.pop(key, None)
            self._compute()
            return
        kept = self._kept.setdefault(key, _Kept())
        kept.compute_s = event.compute_s
        for partition, contribution in event.contributions:
            kept.contributions[partition] = contribution
            if event.clock == self.clock:
                self._push_one(event.bundle, kept, partition)
                self._look_ahead_at(partition)
        if len(kept.contributions) == len(self._mine):
            if self._is_timed and event.clock == self.clock and event.contributions[-1][0] != 0:
                self._push_one(event.bundle, kept, 0)
            self._computing.discard(key)
            self._look_ahead()
            self._compute()

    def _look_ahead(self) -> None:
        """Pull the parameters of the next clock once all of this one is computed."""
        if self.has_computed(self.clock) and self.clock + 1 < self.job.clocks:
            self._begin(self.clock + 1)

    def _look_ahead_at(self, partition: int) -> None:
        """Where it overlaps, pull a partition for the next clock once all of this one is pushed to it."""
        following = self.clock + 1
        if not self.overlaps or following >= self.job.clocks:
            return
        for bundle in self.bundles(self.clock) or ():
            kept = self._kept.get((self.clock, bundle))
            if kept is None or partition not in kept.contributions:
                return
        reading = self._reading.get(following)
        if reading is None:
            begin = self._missing(following)
            if begin is not None and not begin.bundles:
                return  # nothing is dealt to this worker
            reading = self._reading[following] = Reading(following, begin)
            assert self._reads_all is not None, "only what is read whole can be pulled ahead"
            reading.choose(self._reads_all, self._carried.take(following))
        self._pull(reading, (partition,))

    def _push(self, bundle: Units, kept: _Kept) -> None:
        for partition in kept.contributions:
            if partition not in kept.acked:
                self._push_one(bundle, kept, partition)

    def _push_one(self, bundle: Units, kept: _Kept, partition: int) -> None:
        assert self._view is not None
        epoch, contribution = self._view.epoch, kept.contributions[partition]
        if partition == 0 and self._is_timed:
            if len(kept.contributions) < len(self._mine):
                return  # partition 0 gets the seconds of the whole bundle
            at = epoch, partition, self.clock, bundle, contribution
            push: Push = TimedPush(*at, compute_s=kept.compute_s)
        else:
            push = Push(epoch, partition, self.clock, bundle, contribution)
        self._send(self._server_of(partition), push)

    def ack(self, message: Ack) -> None:
        """Record that a partition has counted a bundle, and go on if that was the last."""
        kept = self._kept.get((message.clock, message.bundle))
        if kept is not None:
            kept.acked.add(message.partition)
            if message.clock == self.clock:
                self.go_on()

    def go_on(self) -> None:
        """Go on to the next clock once every partition has every bundle of this one."""
        bundles = self.bundles(self.clock) or ()
        found = [self._kept.get((self.clock, bundle)) for bundle in bundles]
        if any(kept is None or len(kept.acked) < len(self._mine) for kept in found):
            return
        if bundles and self.may_leave(self.clock):
            self._leave_clock()

    def _leave_clock(self) -> None:
        self._abort(self._reading.pop(self.clock, None))
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] > self.clock}
        self._carried.take(self.clock)
        self._recut.pop(self.clock, None)
        self.clock += 1
        self._start()
        self._compute()

    def resend(self) -> None:
        """Repeat every unanswered pull and push."""
        if self._view is None:
            return
        for reading in self._reading.values():
            self._pull(reading, tuple(reading.asked))
        for bundle in self.bundles(self.clock) or ():
            if (kept := self._kept.get((self.clock, bundle))) is not None:
                self._push(bundle, kept)
