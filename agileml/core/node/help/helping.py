"""Help between the workers of a view: FlexRR's RapidReassignment (thesis 3.3) around one machine's worker.

Stands between the worker and the shell. `FlexRrWorker` decides which worker computes which range of another one's
units; this class turns that into computations, pulls and pushes. A worker contributes the units that it was dealt,
without those that it gave away, and those that it took over. Giver and helper would push a range in the same bundles,
so each of its units counts once.

Help lasts as long as a view. A membership change drops all that is under way and deals again what no partition has.
Clocks that the view lists as open are not helped, nor, where clocks have plans, those whose plan does not say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from agileml.core.node.help.given_range import GivenRange, GivenRanges
from agileml.core.node.server import Server
from agileml.core.node.worker import Worker
from agileml.core.protocol.commands import Begun, Compute, Computed, LoadSlices, MarkPassed, NodeCommand
from agileml.core.protocol.deal import bundles_of
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.help_messages import HelpMessage, HelpOver, HelpParams, HelpPull
from agileml.core.protocol.messages import CONTROLLER, Ack, HelpDeclined, HelpPush
from agileml.core.protocol.view import View
from straggler.consistency import Read
from straggler.coverage import Units, members, union
from straggler.flexrr.groups import helper_groups
from straggler.flexrr.protocol import (
    AllCounted,
    Bundle,
    ClockDone,
    Command,
    Discard,
    DoThis,
    Event,
    FlexRrParameters,
    Progress,
    ProgressReport,
    Received,
    Send,
    StartClock,
    TaskDone,
    Tick,
    WakeAt,
)
from straggler.flexrr.protocol import Push as PushRange
from straggler.flexrr.tasks import TaskKind
from straggler.flexrr.worker import FlexRrWorker

SECOND_NS = 1_000_000_000
HelpAnswer = HelpMessage | HelpPull | HelpParams | HelpOver


@dataclass
class _Own:
    """The worker's own range of a clock: its units in their order, and how far it is."""

    order: Compute
    units: tuple[int, ...]
    is_asked: bool = False  # the shell has been asked to compute it
    is_finished: bool = False


class Helping:
    """The helper and helpee in one machine. `now_s` is set by the node before each call."""

    def __init__(
        self,
        io: NodeIo,
        worker: Worker,
        server: Server,
        helped: Callable[[str, int, int], None],
        loaded: Callable[[], Units],
    ) -> None:
        """`helped(helpee, clock, units)` is called when this machine has computed units for another. `loaded()`: the
        slices whose items are here."""
        assert io.job.helping is not None
        self.now_s = 0.0
        self._parameters: FlexRrParameters = io.job.helping
        self._job, self._send, self._ask = io.job, io.send, io.ask
        self._worker = worker
        worker.may_leave, worker.all_counted = self.may_leave, self.all_counted
        self._server = server
        self._helped = helped
        self._loaded = loaded
        self._wanted: Units = 0  # slices whose units others may give away to this machine
        self._is_loading = False
        self._declines = False  # the items of others do not fit
        self._view: View | None = None
        self._names: tuple[str, ...] = ()
        self._flex: FlexRrWorker | None = None
        self._own: _Own | None = None
        self._ranges = GivenRanges(io)
        self._results: dict[Bundle, GivenRange] = {}  # computed, and not pushed yet
        # Pushes that are not acknowledged, by clock, bundle and partition.
        self._pushes: dict[tuple[int, Units, int], HelpPush] = {}
        self._progress_of: dict[int, float] = {}  # by helper, the progress that it reported
        self._wake_ns: int | None = None

    @property
    def is_computing(self) -> bool:
        """True while this machine computes, or waits to compute, a range that was given away."""
        return self._ranges.now is not None

    def adopt(self, view: View) -> None:
        """Begin again under a view, which the worker does not know yet."""
        self._ranges.adopt(view)
        own = self._own
        if own is not None and own.order.cursor.stop < len(own.units):
            own.order.cursor.abort()  # its bundles are no longer those that it was asked for
        elif own is not None and not own.is_asked:
            # It waited for help to end; the worker aborts it if it is not dealt any more.
            self._ask(own.order)
        self._own, self._wake_ns = None, None
        self._results.clear()
        self._pushes.clear()
        self._progress_of.clear()
        self._view = view
        self._names = tuple(view.workers())
        self._flex = self._new_flex(self._names.index(self._worker.me)) if self._can_help() else None
        self._wanted = self._slices_of_helpees()

    def _can_help(self) -> bool:
        return self._worker.me in self._names and len(self._names) > 1 and self._parameters.group_size > 0

    def _new_flex(self, me: int) -> FlexRrWorker:
        count = len(self._names)
        groups = helper_groups(count, count, min(self._parameters.group_size, count - 1))
        helpees = () if self._declines else groups.helpees[me]
        return FlexRrWorker(me, groups.helpers[me], helpees, self._parameters)

    # -- the worker -----------------------------------------------------------------------------------------

    def ask(self, command: NodeCommand) -> None:
        """Pass a command of the worker on to the shell. Its own range of a clock begins here."""
        if not isinstance(command, Compute) or not self._is_helped(command):
            self._ask(command)
            return
        slack = self._job.consistency.slack
        assert slack is not None and self._flex is not None
        self.all_counted(command.clock - 1 - slack)  # its parameters say so
        units = tuple(members(union(command.bundles)))
        command.cursor.chunk = max(1, len(units) // self._parameters.checks)
        self._own = _Own(command, units)
        self._tell(StartClock(command.clock, len(units), units[0] if self._job.deterministic else None))

    def _is_helped(self, order: Compute) -> bool:
        """True for a whole clock's work of this worker, in a clock that began under this view."""
        if self._flex is None or not self._worker.bundles.helps(order.clock):
            return False
        return order.clock > self._flex.clock and order.bundles == self._worker.bundles.of(order.clock)

    def may_leave(self, clock: int) -> bool:
        """False while units of the clock that the worker gave away are not counted."""
        return self._flex is None or self._flex.clock != clock or self._flex.is_clock_done

    def all_counted(self, clock: int) -> None:
        """Record that every unit of all clocks up to this one is counted."""
        if self._flex is not None:
            self._ranges.over(clock)
            self._tell(AllCounted(clock))

    # -- what happens ---------------------------------------------------------------------------------------

    def received(self, sender: str, message: HelpAnswer, *, is_frozen: bool) -> None:
        """Take a message of the promised epoch."""
        if isinstance(message, HelpPull):
            self._give(sender, message)
        elif is_frozen or self._flex is None:
            return
        elif isinstance(message, HelpMessage):
            self._heard_of(sender, message)
        elif isinstance(message, HelpParams):
            self._ranges.params(message)
        elif self._ranges.now is not None and message.task == self._ranges.now.number:
            self.all_counted(message.clock)

    def _give(self, worker: str, message: HelpPull) -> None:
        """Answer a helper's pull. The worker that gave the units has read the clock's parameters everywhere, so they
        are here, or the clock is done."""
        shard = self._server.served(message.partition, message.epoch)
        answer = shard.read(message.clock, message.rows) if shard is not None else Read.WAIT
        at = message.epoch, message.partition, message.clock, message.task
        if isinstance(answer, tuple):
            self._send(worker, HelpParams(*at, answer[1]))
        elif answer is Read.BEHIND:
            self._send(worker, HelpOver(*at))

    def _heard_of(self, sender: str, message: HelpMessage) -> None:
        if sender not in self._names:
            return
        who, body = self._names.index(sender), message.body
        if isinstance(body, DoThis) and not self._is_valid(who, body.bundle):
            return
        if isinstance(body, ProgressReport):
            # Timed here, as clocks of machines differ. A report that comes twice says nothing new.
            if body.progress <= self._progress_of.get(who, -1.0):
                return
            self._progress_of[who] = body.progress
            body = ProgressReport(body.progress, self._now_ns)
        self._tell(Received(who, body))

    def _is_valid(self, helpee: int, bundle: Bundle) -> bool:
        count = len(self._units_of(bundle.clock, helpee))
        return bundle.owner == helpee and 0 <= bundle.start < bundle.stop <= count

    def begun(self, event: Begun) -> None:
        """Pull the rows that a range reads, which are known now."""
        self._ranges.begun(event)

    def passed(self, event: MarkPassed) -> None:
        """Tell helpees how far the own computation is: it has reached the mark for that."""
        own = self._own
        if own is not None and (own.order.timeline, own.order.clock) == (event.timeline, event.clock):
            self._tell(None)

    def computed(self, event: Computed) -> None:
        """Take a computed bundle: of a range that was given away, or of the own range."""
        if self._ranges.has(event):
            if (found := self._ranges.computed(event)) is not None:
                self._results[found.task.bundle] = found
                self._tell(TaskDone())
            return
        self._worker.computed(event)
        own = self._own
        if own is None or own.is_finished or event.clock != own.order.clock:
            return
        if self._worker.bundles.has_computed(event.clock):
            own.is_finished = True
            assert self._flex is not None
            if self._flex.computing_own:
                self._tell(TaskDone())

    def ack(self, message: Ack) -> bool:
        """Record that a partition has counted a bundle of a helper; False for any other bundle."""
        return self._pushes.pop((message.clock, message.bundle, message.partition), None) is not None

    def tick(self) -> None:
        """Ask helpers again whose answers are overdue."""
        if self._wake_ns is not None and self._now_ns >= self._wake_ns:
            self._wake_ns = None
            self._tell(Tick())

    def resend(self) -> None:
        """Repeat every unanswered pull and push."""
        for push in self._pushes.values():
            self._push(push)
        self._ranges.pull()

    # -- inside ---------------------------------------------------------------------------------------------

    @property
    def _now_ns(self) -> int:
        return int(self.now_s * SECOND_NS)

    def _tell(self, event: Event | None) -> None:
        """Tell the state machine how far the own range is, then the event. The computation begins no unit meanwhile."""
        flex, own = self._flex, self._own
        assert flex is not None
        if own is None or own.order.clock != flex.clock:
            self._do(flex.handle(event, self._now_ns) if event is not None else [])
            return
        cursor, commands = own.order.cursor, []
        with cursor.held() as begun:
            if flex.computing_own and flex.task is not None:
                commands += flex.handle(Progress(begun - flex.task.bundle.start), self._now_ns)
            else:
                flex.has_done(begun)
            if event is not None:
                commands += flex.handle(event, self._now_ns)
            is_cut = flex.stop < cursor.stop
            if is_cut:
                cursor.end_at(flex.stop)
            cursor.mark = flex.next_report_at
        if is_cut:
            kept = union(1 << unit for unit in own.units[: flex.stop])
            self._worker.bundles.give_away(own.order.clock, bundles_of(self._job, kept))
        self._do(commands)

    def _do(self, commands: Sequence[Command]) -> None:
        epoch = self._view.epoch if self._view else 0
        is_done = False
        for command in commands:
            match command:
                case Send(to, body):
                    self._send(self._names[to], HelpMessage(epoch, body))
                case PushRange(bundle) if bundle in self._results:
                    self._contribute(bundle, self._results.pop(bundle))
                case Discard(bundle):
                    self._results.pop(bundle, None)
                case WakeAt(at_ns):
                    self._wake_ns = at_ns
                case ClockDone():
                    is_done = True
                case _:
                    pass  # the worker pushes its own range as it is computed; the task says what to compute
        self._follow_task()
        if is_done:
            self._worker.go_on()

    def _follow_task(self) -> None:
        """Have the shell compute the ranges that the state machine computes."""
        assert self._flex is not None
        task = self._flex.task
        if self._ranges.now is not None and self._ranges.now.task is not task:
            self._ranges.drop()
        if task is None:
            self._load_ahead()
        if task is None or self._ranges.now is not None:
            return
        if task.kind is not TaskKind.OWN:
            whole = self._units_of(task.bundle.clock, task.bundle.owner)
            units = whole[task.bundle.start : task.bundle.stop]
            self._ranges.begin(task, bundles_of(self._job, union(1 << unit for unit in units)))
            return
        own = self._own
        assert own is not None
        if not own.is_asked:
            own.is_asked = True
            own.order.cursor.mark = self._flex.next_report_at
            self._ask(own.order)
        elif own.is_finished:  # it ended while another range had to come first
            self._tell(TaskDone())

    def _load_ahead(self) -> None:
        """While there is nothing to compute, load the items of a slice that others may give away."""
        if self._is_loading or self._own is None or not self._own.is_finished:
            return
        if self._own.order.clock < self._worker.clock:
            return  # no help in this one
        missing = self._wanted & ~self._loaded()
        if missing:
            self._is_loading = True
            wanted = self._loaded() | missing & -missing
            is_needed = self._job.balancer is None
            self._ask(LoadSlices(wanted, ahead=missing.bit_count() - 1, is_needed=is_needed))

    def _slices_of_helpees(self) -> Units:
        assert self._view is not None
        found = 0
        for helpee in self._flex.helpees if self._flex is not None else ():
            units = tuple(members(self._view.share[helpee][1]))
            first = self._parameters.first_replicated(len(units))
            found |= union(1 << unit // self._job.parts for unit in units[first:])
        return found

    def loaded(self, too_large: str | None) -> None:
        """Load the next slice after one is loaded, if there is still time. `too_large`: why no more
        items fit; this machine then reports its progress to no other, so that none asks it for help."""
        self._is_loading = False
        if too_large is not None and self._flex is not None and self._view is not None:
            self._declines, self._flex.helpees, self._wanted = True, (), 0
            self._send(CONTROLLER, HelpDeclined(self._view.epoch, too_large))
        if self._flex is not None and self._flex.task is None:
            self._load_ahead()

    def _units_of(self, clock: int, worker: int) -> tuple[int, ...]:
        return tuple(members(self._worker.bundles.dealt_to(self._names[worker], clock)))

    def _contribute(self, bundle: Bundle, found: GivenRange) -> None:
        """Push a range that was computed. If this worker reclaimed it, push it as its own."""
        assert self._view is not None
        clock = bundle.clock
        if found.task.kind is TaskKind.RECLAIM:
            for units, parts in found.found.items():
                took_s = found.compute_s[units]
                self._worker.take_back(
                    Computed(found.begin.timeline, clock, units, tuple(parts.items()), took_s)
                )
            return
        self._helped(self._names[bundle.owner], clock, bundle.stop - bundle.start)
        for push in self._pushes_of(found):
            self._pushes[push.clock, push.bundle, push.partition] = push
            self._push(push)

    def _pushes_of(self, found: GivenRange) -> Iterator[HelpPush]:
        assert self._view is not None
        for units, parts in found.found.items():
            for partition, contribution in parts.items():
                yield HelpPush(self._view.epoch, partition, found.begin.clock, units, contribution)

    def _push(self, push: HelpPush) -> None:
        assert self._view is not None
        self._send(self._view.owner[push.partition], push)
