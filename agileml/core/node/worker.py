"""The worker of a node: pulls the parameters of a clock, has its bundles computed, and pushes their contributions.

In each clock the worker finds out which rows its bundles read, pulls them from every partition, computes, pushes to
every partition, and goes on when all partitions have acknowledged. `bundles` says how far each bundle is.

As soon as it has computed a clock, the worker pulls the parameters of the next one. A server answers when it has them;
an answer with a later version also acknowledges the contributions to that partition. In a planned clock the bundles
themselves may come only with the answer of partition 0 (`protocol.deal`).

Where a worker overlaps, the pull of a partition follows the last push to it, and computing begins when partition 0 is
here. Blocks that come later are delivered to the computation. A new view aborts a computation that still lacks some:
those that came serve again if they are of the same timeline. With `batches` a clock's partitions are pulled batch by
batch, once all of the clock before is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agileml.core.compute.cursor import Cursor
from agileml.core.compute.speed_forecast import SpeedForecast
from agileml.core.node.bundles import Kept, WorkerBundles
from agileml.core.node.overlap.piggyback import can_piggyback
from agileml.core.node.overlap.pull_batches import PullBatches
from agileml.core.node.reading import CarriedBlocks, Reading, Rows
from agileml.core.node.time_spent import Doing
from agileml.core.protocol.commands import Abort, Begin, Begun, Compute, Computed, Deliver
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.job import Overlap
from agileml.core.protocol.messages import Ack, Behind, Params, PlannedParams, Push, TimedPush
from agileml.core.protocol.view import View
from straggler.coverage import Units, union


class Worker:
    """Goes through the clocks of a view, without waiting for other workers or the controller."""

    def __init__(self, io: NodeIo) -> None:
        job = io.job
        self.me, self.job, self._send, self._ask = io.me, job, io.send, io.ask
        self.clock = 0
        self.overlaps = job.overlap in (Overlap.ON, Overlap.BATCHES)  # may change at any time
        self.batches = PullBatches(job.layout.partition_bytes) if job.overlap is Overlap.BATCHES else None
        self.bundles = WorkerBundles(io.me, job)
        self._mine: tuple[int, ...] = ()  # partitions that this worker reads and pushes
        self._reads_all = job.layout.whole_reads
        self._piggybacks = can_piggyback(job)
        self._is_timed = job.balancer is not None  # pushes tell partition 0 how long they took
        self.forecast: SpeedForecast | None = None  # where this worker predicts its own speed
        self._view: View | None = None
        self._reading: dict[int, Reading] = {}  # by clock: this one, and the next one ahead
        self._carried = CarriedBlocks()
        # With help. may_leave(clock): no unit given away is open. all_counted(clock): all up to it are counted.
        self.may_leave: Callable[[int], bool] = lambda clock: True
        self.all_counted: Callable[[int], None] = lambda clock: None

    @property
    def doing(self) -> Doing:
        """The present activity of the worker."""
        if self.bundles.is_computing:
            return Doing.COMPUTE
        if self.clock in self._reading or (self._piggybacks and self.clock + 1 in self._reading):
            return Doing.PULL  # its push asked for parameters, which take longer than an answer to it
        return Doing.PUSH if self.bundles.has_kept else Doing.IDLE

    @property
    def _view_now(self) -> View:
        """The view that the worker works under, once there is one."""
        assert self._view is not None
        return self._view

    @property
    def first_partition(self) -> int:
        """The first partition that this worker reads and pushes; of its stage, in a pipeline."""
        return self._mine[0] if self._mine else 0

    def adopt(self, view: View) -> None:
        """Go on under a new view, from its base clock."""
        for reading in self._reading.values():
            self._abort(reading)
        is_new_timeline = self._view is None or self.job.timeline_of(view) != self.job.timeline_of(self._view)
        if is_new_timeline:
            self._carried.clear()
        elif not self.job.exchange.has_replicas:
            # With plans partition 0 is asked again: a plan holds in its epoch alone.
            self._carried.carry(self._reading.values(), but=0 if self._is_timed else None)
        self._view = view
        self.bundles.adopt(view, is_new_timeline=is_new_timeline)
        self._mine = self.bundles.partitions
        if self.batches is not None:
            self.batches.begin_view({p for p in self._mine if self._server_of(p) != self.me})
        self.clock = view.base
        self._reading.clear()
        self._start()

    def take_back(self, event: Computed) -> None:
        """Contribute a bundle that this worker gave away and then computed itself."""
        self.bundles.take_back(event.clock, event.bundle)
        self.computed(event)

    def _server_of(self, partition: int) -> str:
        """The node to pull a partition from and to push its contributions to."""
        return self.job.exchange.server_of(self._view_now, partition, self.me)

    def _start(self) -> None:
        """Begin the next clock in which this worker has bundles."""
        last_open = max(self._view_now.open_at, default=-1)
        while self.bundles.of(self.clock) == ():
            if self.clock > last_open:
                return  # the view deals nothing to this worker
            self.clock += 1
        if self.clock >= self.job.clocks:
            return
        self._push_kept()
        if not self._begin(self.clock):
            self._look_ahead()
            self.go_on()

    def _begin(self, clock: int) -> bool:
        """Start to pull parameters for the bundles of a clock that are neither computed nor being computed.

        False if there are none.
        """
        begin = self.bundles.missing(clock)
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
            self._pull_due(reading)
        return True

    def begun(self, event: Begun) -> None:
        """Pull the rows that the bundles read, which are known now."""
        reading = self._reading.get(event.begin.clock)
        if reading is not None and reading.begin == event.begin:
            self._read(reading, event.rows)

    def _read(self, reading: Reading, rows: Rows) -> None:
        reading.choose(rows, self._carried.take(reading.clock))
        self._pull_due(reading)
        self._compute()

    def _pull_due(self, reading: Reading) -> None:
        """Pull what was not asked for; with batches, when its turn has come."""
        if self.batches is None:
            self._pull(reading, set(self._mine) - reading.asked)
        elif due := self.batches.due(reading, self._mine):
            self._pull(reading, due)

    def _pull(self, reading: Reading, partitions: Iterable[int]) -> None:
        for pull in reading.pulls(self._view_now.epoch, partitions):
            self._send(self._server_of(pull.partition), pull)

    def params(self, message: Params) -> None:
        """Take the blocks of one partition. Computing starts when the last partition is here."""
        if isinstance(message, PlannedParams):
            self.bundles.learn(message.plan)
        reading = self._reading.get(message.clock)
        if reading is None or reading.rows is None or message.partition in reading.parts:
            return
        reading.parts[message.partition] = message.blocks
        if (order := reading.order) is not None:
            self._ask(Deliver(order.timeline, order.clock, message.partition, message.blocks))
        if self.batches is not None:
            self._pull_due(reading)
        if reading.begin is None and message.partition == 0:
            reading.begin = self.bundles.missing(reading.clock)
            assert reading.begin is not None, f"clock {reading.clock} came without its plan"
        if message.version > self.clock and message.clock > self.clock:
            for _, kept in self.bundles.kept(self.clock):
                kept.acked.add(message.partition)
            if len(reading.parts) == len(self._mine) and self.job.consistency.slack == 0:
                self.all_counted(self.clock)
            self.go_on()
        self._compute()

    def _compute(self) -> None:
        """Start to compute this clock once all its parameters have arrived; with overlap, enough of them do."""
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
        if reading is None or reading.begin is None or reading.order is not None or self.bundles.is_computing:
            return reading
        if 0 in reading.parts and len(reading.parts) < len(self._mine):
            reading.order = self._ask_to_compute(reading, reading.begin)
        return reading

    def _ask_to_compute(self, reading: Reading, begin: Begin) -> Compute:
        parts = reading.parts_of(self._mine, self.job.layout.partitions)
        cursor = Cursor(sum(bundle.bit_count() for bundle in begin.bundles))
        order = Compute(begin.timeline, begin.clock, begin.bundles, parts, cursor)
        self.bundles.begin(order)
        self._ask(order)
        return order

    def _abort(self, reading: Reading | None) -> None:
        """Give up the computation of a clock whose parameters are not all here."""
        if reading is not None and (order := reading.order) is not None:
            self.bundles.abort(order)
            self._ask(Abort(order.timeline, order.clock))

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
        if self.batches is not None and event.needed_s:
            self.batches.computed(event.needed_s)
        key = (event.clock, event.bundle)
        if (
            self._view is None
            or event.timeline != self.job.timeline_of(self._view)
            or not self.bundles.awaits(key)
        ):
            return  # of another timeline, or aborted too late
        if self.bundles.is_void(key):
            if self.bundles.came_void(key, len(event.contributions)):
                self._begin(self.clock)
                self._compute()
            return
        if event.clock < self.clock or event.bundle not in (self.bundles.of(event.clock) or ()):
            # Drop the partitions that came before as well: a bundle that is dealt again later is computed whole.
            self.bundles.drop(key)
            self._compute()
            return
        kept = self.bundles.keep(event)
        if len(kept.contributions) + len(event.contributions) == len(self._mine):
            self._foresee(event)
        for partition, contribution in event.contributions:
            kept.contributions[partition] = contribution
            if event.clock == self.clock:
                self._push_one(event.bundle, kept, partition)
                self._look_ahead_at(partition)
        if len(kept.contributions) == len(self._mine):
            if self._is_timed and event.clock == self.clock and event.contributions[-1][0] != 0:
                self._push_one(event.bundle, kept, 0)
            self.bundles.finish(key)
            self._look_ahead()
            self._compute()

    def _foresee(self, event: Computed) -> None:
        """Update the forecast with a computed bundle: its push tells the speed that this worker expects."""
        if self.forecast is not None:
            dealt = union(self.bundles.of(event.clock) or ()).bit_count()
            self.forecast.computed(event.clock, event.bundle.bit_count(), event.compute_s, dealt)

    def _look_ahead(self) -> None:
        """Pull the parameters of the next clock once all of this one is computed."""
        if self.bundles.has_computed(self.clock) and self.clock + 1 < self.job.clocks:
            self._begin(self.clock + 1)

    def _look_ahead_at(self, partition: int) -> None:
        """With overlap, pull a partition for the next clock once this clock is pushed to it."""
        following = self.clock + 1
        if not self.overlaps or self.batches is not None or following >= self.job.clocks:
            return
        if not self.bundles.has_computed_for(self.clock, partition):
            return
        reading = self._reading.get(following)
        if reading is None:
            begin = self.bundles.missing(following)
            if begin is not None and not begin.bundles:
                return  # nothing is dealt to this worker
            reading = self._reading[following] = Reading(following, begin)
            assert self._reads_all is not None, "only what is read whole can be pulled ahead"
            reading.choose(self._reads_all, self._carried.take(following))
        self._pull(reading, (partition,))

    def _push_kept(self) -> None:
        """Push all contributions of this clock that were not acknowledged."""
        for bundle, kept in self.bundles.kept(self.clock):
            for partition in kept.contributions:
                if partition not in kept.acked:
                    self._push_one(bundle, kept, partition)

    def _push_one(self, bundle: Units, kept: Kept, partition: int) -> None:
        epoch, contribution = self._view_now.epoch, kept.contributions[partition]
        if partition == 0 and self._is_timed:
            if len(kept.contributions) < len(self._mine):
                return  # partition 0 gets the seconds of the whole bundle
            at = epoch, partition, self.clock, bundle, contribution
            expected = self.forecast.expected if self.forecast is not None else 0.0
            push: Push = TimedPush(*at, compute_s=kept.compute_s, expected=expected)
        else:
            push = Push(epoch, partition, self.clock, bundle, contribution)
        self._send(self._server_of(partition), push)

    def ack(self, message: Ack) -> None:
        """Record that a partition has counted a bundle, and go on if that was the last."""
        if (
            self.bundles.acked(message.clock, message.bundle, message.partition)
            and message.clock == self.clock
        ):
            self.go_on()

    def go_on(self) -> None:
        """Go on to the next clock once every partition has every bundle of this one."""
        if not self.bundles.of(self.clock) or not self.bundles.are_counted(self.clock):
            return
        if self.may_leave(self.clock):
            self._leave_clock()

    def _leave_clock(self) -> None:
        self._abort(self._reading.pop(self.clock, None))
        self._carried.take(self.clock)
        self.bundles.leave(self.clock)
        self.clock += 1
        self._start()
        self._compute()

    def resend(self) -> None:
        """Repeat every unanswered pull and push."""
        if self._view is None:
            return
        for reading in self._reading.values():
            self._pull(reading, tuple(reading.asked))
        self._push_kept()
