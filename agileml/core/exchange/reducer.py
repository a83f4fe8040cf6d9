"""The sums of one machine in an all-reduce: their order, when to pause, and the sums that a closed group loses.

Every machine of a group holds a replica of all partitions. It hands the sum of its own bundles to the group, partition
by partition, the last one first because backward ends there first. When the sum of the group is back, it applies it to
its replica, as one push of all units of the clock. So while clock t is added up, each partition of a replica is at t
or t + 1, and a machine with any partition at t + 1 knows that all machines have read all of t.

The order is fixed: clock by clock, partitions N - 1 .. 0. All replicas begin a view at equal versions, so all machines
leave out the same partitions: those that were at t + 1 already. Partition 0 carries the loss, a flag and, where clocks
are planned, the seconds that each machine computed and the speed that it expects. When any machine sets the flag, all
of them pause after this clock, between two sums, while computing goes on. A membership change then finds equal replicas
and no sum under way. A change that cannot wait, after a death, closes the group. Sums are made in place, so the machine
recomputes the bundles whose sums did not come back.

Where machines share the optimizer's state out, each steps the partitions that it owns when all sums of a clock are
back, and applies them; the group sends the new values of each partition from its owner to all others, which then apply
it. So with shares, too, a partition of a replica is at t or t + 1, and the owner's is the first.
"""

from __future__ import annotations

from agileml.core.node.server import Server
from agileml.core.node.sources.resident import ResidentTables
from agileml.core.node.worker import Worker
from agileml.core.parameters.fold import Contribution, Fold
from agileml.core.parameters.whole_updates import summed_blocks, whole_blocks
from agileml.core.protocol.commands import (
    Abandon,
    Broken,
    Form,
    Gather,
    Gathered,
    Introduce,
    Met,
    Reduce,
    Reduced,
)
from agileml.core.protocol.exchange import Combiner, NodeIo
from agileml.core.protocol.messages import CONTROLLER, Ack, GroupFailed, Meet, Push, TimedPush
from agileml.core.protocol.view import View
from straggler.coverage import Units, Verdict, judge, union


class Reducer(Combiner):
    """Stands between a worker and the replica on its own machine."""

    def __init__(self, io: NodeIo, worker: Worker, server: Server) -> None:
        self.me = io.me
        self.job = io.job
        self._is_paused = False
        self._worker = worker
        self._server = server
        self._send = io.send
        self._ask = io.ask
        self._view: View | None = None  # None while this machine has no group
        self._clock = 0
        self._next = 0  # the partition to hand over next; -1: all are handed over
        self._folds: dict[tuple[int, int], Fold] = {}  # by clock and partition
        self._away: set[int] = set()  # partitions of this clock that the group is adding up
        # Sums of this clock that wait for those of all partitions, or for what other machines step along them.
        self._held: list[Reduced] = []
        self._is_gathering = False  # others have stepped partitions of this clock, whose values are to come
        self._wants_pause = False
        self._is_to_pause = False  # some machine wants to: all pause when this clock is applied
        self._compute_s = 0.0  # spent on this clock's bundles
        self._expected = 0.0  # units per second in the next clock, as the worker said last
        self._met: dict[str, bytes] = {}
        self._has_summed = False  # True: a sum has come back, so the group is connected
        self._failure: GroupFailed | None = None

    # -- changes of members ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Close the group and drop the sums under way, because a change begins."""
        if self._view is None:
            return
        for bundle in (self._worker.bundles.of(self._clock) or ()) if self._away or self._held else ():
            self._worker.bundles.forget(self._clock, bundle)
        self._reset()
        self._ask(Abandon())

    def _reset(self) -> None:
        self._view = None
        self._folds.clear()
        self._away.clear()
        self._held.clear()
        self._met.clear()
        self._failure = None
        self._is_paused = self._wants_pause = self._is_to_pause = self._has_summed = False
        self._is_gathering = False
        self._compute_s = 0.0

    def adopt(self, view: View) -> None:
        """Open the group of a view, after `prepare`. The server and the worker know the view already."""
        if self.me not in view.group:
            return
        self._view = view
        self._clock = view.base
        self._next = self.job.layout.partitions - 1
        self._ask(Form(view.epoch, view.group))
        self._go_on()

    def met(self, event: Met) -> None:
        """Send this machine's entry for the rendezvous to the group."""
        if self._is_current(event.epoch):
            self._met[event.key] = event.value
            self._introduce()

    def meet(self, message: Meet) -> None:
        """Take another machine's entry for the rendezvous."""
        self._ask(Introduce(message.epoch, message.key, message.value))

    def _introduce(self) -> None:
        assert self._view is not None
        for node in self._view.group:
            if node != self.me:
                for key, value in self._met.items():
                    self._send(node, Meet(self._view.epoch, key, value))

    def resend(self) -> None:
        """Send the introductions again until the first sum is back, and the report of a failure."""
        if self._view is not None and not self._has_summed:
            self._introduce()
        if self._view is not None and self._failure is not None:
            self._send(CONTROLLER, self._failure)

    def broken(self, event: Broken) -> None:
        """Tell the controller that the group cannot add up any more; it will begin a change."""
        if self._is_current(event.epoch):
            self._failure = GroupFailed(event.epoch, event.reason)
            self._send(CONTROLLER, self._failure)

    def _is_current(self, epoch: int) -> bool:
        return self._view is not None and self._view.epoch == epoch

    # -- clocks ---------------------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def pause(self) -> None:
        """Ask all machines to stop after a clock, with the next sum of partition 0."""
        self._wants_pause = True

    def push(self, worker: str, message: Push, now_s: float) -> None:
        """Take a bundle of this machine's worker into the sum for the group."""
        clock, partition = message.clock, message.partition
        if not self._is_current(message.epoch):
            return
        if self._version(partition) > clock:
            self._acknowledge(clock, partition, (message.bundle,))
            return
        if clock == self._clock and partition in self._away:
            return
        fold = self._folds.setdefault((clock, partition), Fold(deterministic=False))
        if judge(fold.counted, message.bundle) is Verdict.COUNT:
            fold.add(message.bundle, message.contribution)
            if isinstance(message, TimedPush):
                self._compute_s += message.compute_s
                self._expected = message.expected
            self._go_on()

    def reduced(self, event: Reduced, now_s: float) -> None:
        """Apply the sum of a partition, which the group has added up, to the replica."""
        if not self._is_current(event.epoch):
            return
        assert (event.clock, self._version(event.partition)) == (self._clock, self._clock), event
        self._has_summed = True
        self._away.remove(event.partition)
        self._is_to_pause |= event.pause
        if event.compute_s:
            assert self._view is not None
            compute_s = dict(zip(self._view.group, event.compute_s, strict=True))
            expected = dict(zip(self._view.group, event.expected, strict=True))
            self._server.measured(event.epoch, event.clock, compute_s, expected)
        self._held.append(event)
        is_whole = self.job.needs_sums or self.job.is_resident  # the step needs the sums of all
        if not is_whole or event.partition == 0:  # the last one
            if (resident := self._server.resident) is not None:
                resident.step(event.clock, [found.blocks for found in reversed(self._held)])
                if self.job.exchange.shares_state:
                    self._gather(event.clock, resident, now_s)
                    return
            self._apply_held(now_s)
        self._go_on()

    def _gather(self, clock: int, resident: ResidentTables, now_s: float) -> None:
        """Apply the partitions that are stepped here, and have the new values of all sent, each from its owner."""
        assert self._view is not None
        owner = self._view.owner
        parts = tuple((owner[partition], arrays) for partition, arrays in resident.stepped())
        self._is_gathering = True
        for found in [held for held in self._held if owner[held.partition] == self.me]:
            self._held.remove(found)
            self._apply(found, now_s)
        self._ask(Gather(self._view.epoch, clock, parts))

    def gathered(self, event: Gathered, now_s: float) -> None:
        """Apply the clock: the values of the partitions that others have stepped are here."""
        if not self._is_current(event.epoch):
            return
        assert event.clock == self._clock and self._server.resident is not None, event
        self._server.resident.complete()
        self._is_gathering = False
        self._apply_held(now_s)
        self._go_on()

    def _apply_held(self, now_s: float) -> None:
        held, self._held = self._held, []
        for found in held:
            self._apply(found, now_s)
        self._is_paused = self._is_to_pause

    def _apply(self, event: Reduced, now_s: float) -> None:
        blocks = summed_blocks(self.job.layout.tables, event.blocks)
        total = Contribution(blocks, event.loss, event.examples, event.metrics)
        push = Push(event.epoch, event.partition, event.clock, self.job.all_units, total)
        self._server.push(self.me, push, now_s, given=True)
        self._acknowledge(event.clock, event.partition, self._worker.bundles.of(event.clock) or ())

    def _acknowledge(self, clock: int, partition: int, bundles: tuple[Units, ...]) -> None:
        assert self._view is not None
        for bundle in bundles:
            self._send(self.me, Ack(self._view.epoch, partition, clock, bundle))

    def _version(self, partition: int) -> int:
        assert self._view is not None
        version = self._server.version(partition, self._view.epoch)
        assert version is not None, (self.me, partition)
        return version

    def _go_on(self) -> None:
        """Hand over, in order, all partitions to which this machine has nothing left to add."""
        while self._view and not self._is_paused and self._clock < self.job.clocks:
            at = (self._clock, self._next)
            if self._next < 0:
                if self._away or self._is_gathering:
                    return
                self._clock += 1
                self._next = self.job.layout.partitions - 1
                continue
            if self._version(self._next) > self._clock:
                self._next -= 1
                continue
            fold = self._folds.get(at)
            bundles = self._worker.bundles.of(self._clock)
            if bundles is None or union(bundles) & ~(fold.counted if fold else 0):
                return
            self._folds.pop(at, None)
            self._away.add(self._next)
            self._next -= 1
            own = fold.total() if fold else Contribution((None,) * len(self.job.layout.tables))
            pause = self._wants_pause and at[1] == 0
            compute_s, expected = self._spent_s(at[1]), self._expected
            blocks = whole_blocks(self.job.layout, at[1], own)
            # As many numbers from every machine, whether it measured something or not.
            metrics = own.metrics or (0.0,) * (2 * len(self.job.metrics)) if at[1] == 0 else ()
            sums = own.loss, own.examples
            self._ask(Reduce(self._view.epoch, *at, blocks, *sums, pause, compute_s, expected, metrics))

    def _spent_s(self, partition: int) -> float | None:
        """The seconds that this machine computed for the clock, which go with partition 0 where clocks are planned."""
        if partition != 0 or self.job.balancer is None:
            return None
        compute_s, self._compute_s = self._compute_s, 0.0
        return compute_s
