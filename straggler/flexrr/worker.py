"""FlexRR's RapidReassignment between peers (thesis 3.3): one worker as a pure state machine.

Events in, commands out, time is an argument. A slow worker hands ranges of its iteration to helpers that are
ahead, takes back those that no helper has begun, and goes on to the next iteration when all of it is done:

    helper --progress-report--> helpee     on reaching the checkpoint, 75% of the iteration
    helpee --do-this---------> helper      it is behind: `initial` share from the end of what it holds
    helper --begun-helping---> helpee      at the end of its own iteration (at once if it is a clock ahead)
    helpee --do-this---------> helper      still behind: `follow_up` share; and so on
    helper --help-completed--> helpee
    helpee --cancel-help-----> helper      own work done, this range not begun: it computes it itself
    helper --cancel-ack------> helpee      begun or not; only "not begun" lets the helpee push its result

A range is whole units, its bounds fixed at the offer, so that a range that two pushed all the same (a helper that
died after its push) is one bundle, counted once. Any message may be lost, late or doubled: the helpee asks
again by cancel-help, and every answer can be given twice. Long because it is one state machine, helper and helpee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from straggler.flexrr.help_queue import HelpQueue
from straggler.flexrr.protocol import (
    AllCounted,
    BegunHelping,
    Bundle,
    CancelAck,
    CancelHelp,
    ClockDone,
    Command,
    Compute,
    Cut,
    Discard,
    DoThis,
    Event,
    FlexRrParameters,
    HelpCompleted,
    PeerLeft,
    Progress,
    ProgressReport,
    Push,
    Received,
    Redo,
    Send,
    StartClock,
    Stop,
    TaskDone,
    Tick,
    WakeAt,
)
from straggler.flexrr.tasks import Fate, Offer, Offers, Task, TaskKind


class FlexRrWorker:
    """One worker. `handle` takes an event and the local run-time clock, and returns what to do.

    With no helpers it is a worker of BSP or SSP: the caller decides when a clock may start.
    """

    def __init__(
        self, worker: int, helpers: tuple[int, ...], helpees: tuple[int, ...], parameters: FlexRrParameters
    ) -> None:
        self.worker = worker
        self.helpers = helpers
        self.helpees = helpees
        self.parameters = parameters
        self.clock = -1
        self.units = 0
        self.done = 0  # own units finished, from the front
        self.stop = 0  # own units still held end here
        self._first: int | None = None  # see StartClock
        self._own_pushed = True
        self.is_clock_done = True  # all of this worker's share is pushed, by itself or by helpers
        self._reported = True
        self._average_ns = 0.0
        self._started_ns = 0
        self._last_timestamp = -1
        self.task: Task | None = None  # to be computed now
        self._offers = Offers()  # of this clock
        self._reports: dict[int, ProgressReport] = {}
        self._help = HelpQueue()
        self._redo: list[Bundle] = []
        self._wake_ns = -1  # of the latest `WakeAt`
        self._out: list[Command] = []
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            StartClock: self._on_start,
            Progress: self._on_progress,
            TaskDone: self._on_task_done,
            AllCounted: self._on_counted,
            Received: self._on_received,
            PeerLeft: self._on_peer_left,
            Redo: self._on_redo,
            Tick: self._on_tick,
            ProgressReport: self._on_report,
            DoThis: self._on_do_this,
            BegunHelping: self._on_begun,
            HelpCompleted: self._on_completed,
            CancelHelp: self._on_cancel,
            CancelAck: self._on_cancel_ack,
        }

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """React to one event; the commands are to be carried out in order."""
        self._out = []
        self._handlers[type(event)](event, now_ns)
        return self._out

    @property
    def progress(self) -> float:
        """In iterations; items that were given away count as done (2.3)."""
        return self.clock + 1 - (self.stop - self.done) / self.units if self.units else self.clock + 1.0

    @property
    def computing_own(self) -> bool:
        """The present task is the worker's own range of its clock."""
        return self.task is not None and self.task.kind is TaskKind.OWN

    def has_done(self, units: int) -> None:
        """So many own units are begun, from the front, whatever is being computed now."""
        assert self.done <= units <= self.stop, (self.done, units, self.stop)
        self.done = units

    @property
    def next_report_at(self) -> int | None:
        """Own units done at which the progress report is due, for a caller that skips idle checks."""
        if self._reported or not self.helpees:
            return None
        return max(0, self.stop - self._left_at_checkpoint)

    @property
    def _left_at_checkpoint(self) -> int:
        return math.floor((1 - self.parameters.checkpoint) * self.units + 1e-9)

    # -- own work

    def _on_start(self, event: StartClock, now_ns: int) -> None:
        assert self.is_clock_done and event.clock > self.clock, "clocks start in order, each when one is done"
        self.clock, self.units, self._first = event.clock, event.units, event.first
        self.done, self.stop = 0, event.units
        self._own_pushed, self.is_clock_done, self._reported = False, False, False
        self._started_ns = now_ns
        self._offers = Offers()
        self._go_on(now_ns)

    def _on_progress(self, event: Progress, now_ns: int) -> None:
        if self.task is not None and self.task.kind is TaskKind.OWN:
            self.done = self.task.bundle.start + event.done
            self._report(now_ns)

    def _on_counted(self, event: AllCounted, now_ns: int) -> None:
        """Nothing up to this clock is open: drop it, helping included."""
        self._help.drop_counted(event.clock)
        task = self.task
        if task is not None and task.bundle.clock <= event.clock:
            self._out.append(Discard(task.bundle))
            if task.assignment is not None:
                self._help.complete(task.helpee, task.assignment)
                self._out.append(Send(task.helpee, HelpCompleted(task.assignment)))
            self.task = None
        if event.clock >= self.clock:
            for offer in self._offers:
                if offer.fate is Fate.HELD:
                    self._out.append(Discard(offer.assignment.bundle))
                offer.fate = Fate.SETTLED
            self._own_pushed = True
        self._go_on(now_ns)

    def _report(self, now_ns: int) -> None:
        if not self._reported and self.stop - self.done <= self._left_at_checkpoint:
            self._reported = True
            report = ProgressReport(self.progress, now_ns)
            self._out += [Send(helpee, report) for helpee in self.helpees]

    def _on_task_done(self, _: TaskDone, now_ns: int) -> None:
        task = self.task
        assert task is not None
        self.task = None
        if task.kind is TaskKind.OWN:
            self.done = self.stop
            self._finish_own(now_ns)
        elif task.kind is TaskKind.HELP:
            assert task.assignment is not None
            self._help.complete(task.helpee, task.assignment)
            self._out += [Push(task.bundle), Send(task.helpee, HelpCompleted(task.assignment))]
        elif task.kind is TaskKind.REDO:
            self._out.append(Push(task.bundle))
        else:
            assert task.offer is not None
            if task.offer.computed():
                self._out.append(Push(task.bundle))
        self._go_on(now_ns)

    def _finish_own(self, now_ns: int) -> None:
        """Push the own range, which is finished, and take back the ranges that no helper has begun."""
        self._own_pushed = True
        self._report(now_ns)
        if self.stop > 0:
            self._out.append(Push(Bundle(self.clock, self.worker, 0, self.stop)))
        took = now_ns - self._started_ns
        weight = self.parameters.average_weight
        self._average_ns = (
            weight * took + (1 - weight) * self._average_ns if self._average_ns else float(took)
        )
        for offer in self._offers:
            if offer.fate is Fate.OFFERED:
                offer.fate = Fate.CANCELLING
                self._ask(offer, now_ns)

    def _go_on(self, now_ns: int) -> None:
        """Choose the next task, if there is none; the clock is done when nothing of it is open."""
        if self.task is not None:
            return
        task = self._next_task()
        if task is not None:
            self.task = task
            self._out.append(Compute(task.bundle))
            if task.assignment is not None:
                self._out.append(Send(task.helpee, BegunHelping(task.assignment)))
            return
        if not self.is_clock_done and self._offers.all_settled():
            self.is_clock_done = True
            self._out.append(ClockDone(self.clock))
        elif not self.is_clock_done:
            self._wake(now_ns)
        self._out.append(Stop())

    def _wake(self, now_ns: int) -> None:
        if self._wake_ns <= now_ns:
            self._wake_ns = now_ns + self.parameters.resend_ns
            self._out.append(WakeAt(self._wake_ns))

    def _next_task(self) -> Task | None:
        if self._redo:
            return Task(TaskKind.REDO, self._redo.pop(0))
        back, own_left = self._offers.to_compute(), not self._own_pushed
        if found := self._help.take(self.clock, any_clock=not (own_left or back)):
            helpee, assignment = found
            return Task(TaskKind.HELP, assignment.bundle, helpee, assignment)
        if own_left:
            return Task(TaskKind.OWN, Bundle(self.clock, self.worker, self.done, self.stop))
        return Task(TaskKind.RECLAIM, back.assignment.bundle, offer=back) if back else None

    # -- giving work away

    def _on_report(self, message: tuple[int, ProgressReport], now_ns: int) -> None:
        sender, report = message
        known = self._reports.get(sender)
        if known is None or report.timer_ns > known.timer_ns:
            self._reports[sender] = report
        waiting = any(o.helper == sender and o.fate is Fate.OFFERED for o in self._offers)
        if not waiting:
            self._offer(sender, self.parameters.initial, now_ns)

    def _on_begun(self, message: tuple[int, BegunHelping], now_ns: int) -> None:
        sender, begun = message
        offer = self._offers.find(begun.assignment)
        if offer is None or offer.fate in (Fate.SETTLED, Fate.BEGUN, Fate.MINE):
            return
        self._left_to_helper(offer)
        self._offer(sender, self.parameters.follow_up, now_ns)
        self._go_on(now_ns)

    def behind(self, helper: int, now_ns: int) -> float:
        """Algorithm 1: how far, in iterations, this worker is behind a helper that reported."""
        report = self._reports.get(helper)
        if report is None:
            return 0.0
        elapsed = now_ns - self._started_ns
        fraction = self.progress - self.clock
        average = self._average_ns or (elapsed / fraction if fraction > 0 else math.inf)
        completion_diff = report.progress - self.progress
        time_diff = now_ns - report.timer_ns
        return completion_diff + (time_diff / average if average > 0 else 0.0)

    def _offer(self, helper: int, share: float, now_ns: int) -> None:
        """Give `share` of the iteration to a helper, from the end of the items that are still held, if behind."""
        if self._own_pushed or helper not in self.helpers:
            return
        if self.behind(helper, now_ns) <= self.parameters.threshold:
            return
        held = self.stop - self.done
        size = min(max(1, round(share * self.units)), held // 2)
        start = max(self.stop - size, self.parameters.first_replicated(self.units))
        if start >= self.stop:
            return
        start = self._aligned(start)
        assignment = DoThis(Bundle(self.clock, self.worker, start, self.stop), self._timestamp(now_ns))
        self._offers.add(Offer(assignment, helper))
        self.stop = start
        self._out.append(Send(helper, assignment))
        if self.computing_own:
            self._out.append(Cut(start))
            self._report(now_ns)

    def _aligned(self, start: int) -> int:
        """Where a range that is given away starts: later by less than half of it, on a multiple of a power of two."""
        if self._first is None:
            return start
        step = 1 << max(0, (self.stop - start).bit_length() - 2)
        return -(-(self._first + start) // step) * step - self._first

    def _ask(self, offer: Offer, now_ns: int) -> None:
        self._out.append(Send(offer.helper, CancelHelp(offer.assignment, self._timestamp(now_ns))))

    def _on_completed(self, message: tuple[int, HelpCompleted], now_ns: int) -> None:
        offer = self._offers.find(message[1].assignment)
        if offer is not None and offer.fate is not Fate.SETTLED and offer.fate is not Fate.MINE:
            self._left_to_helper(offer)
            offer.fate = Fate.SETTLED
            self._go_on(now_ns)

    def _on_cancel_ack(self, message: tuple[int, CancelAck], now_ns: int) -> None:
        ack = message[1]
        offer = self._offers.find(ack.assignment)
        if offer is None or offer.fate not in (Fate.CANCELLING, Fate.HELD):
            return
        if ack.begun:
            self._left_to_helper(offer)
        else:
            self._take_back(offer)
        self._go_on(now_ns)

    def _left_to_helper(self, offer: Offer) -> None:
        """The helper computes the range: drop the part that was computed here."""
        if offer.fate is Fate.HELD:
            self._out.append(Discard(offer.assignment.bundle))
        if self.task is not None and self.task.offer is offer:
            self._out.append(Discard(offer.assignment.bundle))
            self.task = None
        offer.fate = Fate.BEGUN

    def _take_back(self, offer: Offer) -> None:
        if offer.taken_back():
            self._out.append(Push(offer.assignment.bundle))

    def _on_tick(self, _: Tick, now_ns: int) -> None:
        """Ask again about every range that is not settled: the question or the answer may be lost."""
        if self.task is not None or self.is_clock_done:
            return
        if now_ns < self._wake_ns:  # too early: the tick of an older wait, or of an inexact timer
            self._out.append(WakeAt(self._wake_ns))
            return
        for offer in self._offers.unanswered():
            self._ask(offer, now_ns)
        self._wake(now_ns)

    # -- helping (algorithm 2)

    def _on_do_this(self, message: tuple[int, DoThis], now_ns: int) -> None:
        helpee, assignment = message
        clock = assignment.bundle.clock
        if helpee not in self.helpees or clock > self.clock or not self._help.accept(helpee, assignment):
            return
        if clock < self.clock and self.computing_own:
            self.task = None  # own work waits
        self._go_on(now_ns)

    def _on_cancel(self, message: tuple[int, CancelHelp], now_ns: int) -> None:
        self._out.append(Send(message[0], self._help.cancel(*message)))

    # -- members

    def _on_received(self, event: Received, now_ns: int) -> None:
        self._handlers[type(event.message)]((event.sender, event.message), now_ns)

    def _on_peer_left(self, event: PeerLeft, now_ns: int) -> None:
        gone = event.worker
        self.helpers = tuple(w for w in self.helpers if w != gone)
        self.helpees = tuple(w for w in self.helpees if w != gone)
        self._help.forget(gone)
        if self.task is not None and self.task.kind is TaskKind.HELP and self.task.helpee == gone:
            self._out.append(Discard(self.task.bundle))
            self.task = None
        for offer in self._offers.open_at(gone):
            self._take_back(offer)
        self._go_on(now_ns)

    def _on_redo(self, event: Redo, now_ns: int) -> None:
        self._redo += event.bundles
        if self.computing_own:
            self.task = None
        self._go_on(now_ns)

    def _timestamp(self, now_ns: int) -> int:
        """Unique and growing, whatever the clock does."""
        self._last_timestamp = max(now_ns, self._last_timestamp + 1)
        return self._last_timestamp
