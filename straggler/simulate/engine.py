"""Event-driven, deterministic simulation of schemes on a pattern, with the policies and protocol of a real engine.

Workers are `FlexRrWorker`s (without helpers: plain BSP, SSP, ASP, LB-BSP, ElasticBSP workers), a `SchemePolicy`
says when they go on, the server counts units by the coverage rule. A worker's message checks at which nothing has
arrived change nothing, so they are skipped: cost goes with messages, not with checks.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from straggler.coverage import Verdict, judge, ranges, span
from straggler.flexrr.groups import Groups
from straggler.flexrr.protocol import (
    Bundle,
    ClockDone,
    Compute,
    Cut,
    Discard,
    Event,
    FlexRrParameters,
    Message,
    PeerLeft,
    Progress,
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
from straggler.flexrr.worker import FlexRrWorker
from straggler.simulate.computer import SECOND_NS, Computer
from straggler.simulate.outcome import Counted, Departure, Network, Outcome
from straggler.simulate.policies import Measured, SchemePolicy
from straggler.simulate.profile import SpeedProfile


class Simulation:
    """One run; `run` may be called once. AssertionError: a unit counted in part, or never (a deadlock).

    `units`: of an even share of an iteration; `iteration_s`: an undisturbed worker's time for it; `check_s`: what a
    message check costs a FlexRR worker.
    """

    def __init__(
        self,
        profiles: list[SpeedProfile],
        policy: SchemePolicy,
        *,
        units: int,
        iteration_s: float,
        groups: Groups | None = None,
        parameters: FlexRrParameters | None = None,
        network: Network | None = None,
        departures: tuple[Departure, ...] = (),
        check_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        n = len(profiles)
        parameters = parameters or FlexRrParameters(group_size=0)
        groups = groups or Groups(((),) * n, ((),) * n)
        # A check costs time at every one, not only at those that find a message: spread over the units.
        effort = 1 + (parameters.checks * check_s / iteration_s if any(groups.helpers) else 0.0)
        self.policy = policy
        self.check_units = max(1, units // parameters.checks)
        self.runners = [
            Computer(
                FlexRrWorker(w, groups.helpers[w], groups.helpees[w], parameters),
                profiles[w],
                iteration_s * effort / units,
            )
            for w in range(n)
        ]
        self.network = network or Network()
        self.delay_ns, self.loss = self.network.delay_s * SECOND_NS, self.network.loss
        self.sent: Counter[type] = Counter()
        self.departures = departures
        self.random = random.Random(seed)
        self.alive = set(range(n))
        self.gone: set[int] = set()  # and known to be
        self.heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.sequence = 0
        self.now = 0
        self.version = 0  # clocks complete
        self.dealt: dict[tuple[int, int], int] = {}  # (round, owner) -> units
        self.counted: dict[tuple[int, int], int] = {}  # (round, owner) -> which of them
        self.open_units: dict[int, int] = {}  # round -> units dealt and not counted
        self.redo: dict[Bundle, int] = {}  # of workers that left -> the worker that computes it now
        self.last_ns = 0
        self.left_ns: dict[int, int] = {}
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Simulate to the end."""
        for departure in self.departures:
            self._at(round(departure.at_s * SECOND_NS), self._depart, departure)
        if self.policy.at_barrier:
            self.policy.open_barrier(0)
        self._offer_rounds()
        while self.heap:
            self.now, _, action, arguments = heapq.heappop(self.heap)
            action(*arguments)
        return self._finish()

    def _finish(self) -> Outcome:
        never = {key: units for key, units in self.dealt.items() if self.counted[key] != span(0, units)}
        assert not never, f"units that were never counted: {never}"
        out, end = self.outcome, self.last_ns
        for worker, runner in enumerate(self.runners):
            there_ns = min(end, self.left_ns.get(worker, end))  # it may have left after the last unit
            if runner.idle_since_ns is not None:
                out.waiting_s += max(0, there_ns - runner.idle_since_ns) / SECOND_NS
            out.worker_s += there_ns / SECOND_NS
        out.total_s = end / SECOND_NS
        out.messages = {kind.__name__: count for kind, count in self.sent.items()}
        return out

    # -- time and messages

    def _at(self, time_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        self.sequence += 1
        heapq.heappush(self.heap, (time_ns, self.sequence, action, arguments))

    def _delay_ns(self) -> int:
        """To or from the server: sent again until it arrives."""
        delay = self.delay_ns * (0.5 + self.random.random())
        while self.loss and self.random.random() < self.loss:
            delay += self.network.resend_s * SECOND_NS
        return round(delay)

    def _send(self, sender: int, to: int, message: Message) -> None:
        self.sent[type(message)] += 1
        if not self.loss or self.random.random() >= self.loss:
            delay_ns = int(self.delay_ns * (0.5 + self.random.random()))
            self._at(self.now + delay_ns, self._deliver, to, sender, message)

    def _deliver(self, to: int, sender: int, message: Message) -> None:
        if to in self.alive:
            runner = self.runners[to]
            runner.mailbox.append((sender, message))
            if runner.bundle is None:
                self._read_mail(to)
            elif len(runner.mailbox) == 1:  # else the next check is planned already
                self._plan_check(to)

    def _read_mail(self, worker: int) -> None:
        runner = self.runners[worker]
        mail, runner.mailbox = runner.mailbox, []
        for sender, message in mail:
            if sender not in self.gone:
                self._handle(worker, Received(sender, message))
        self._plan_wake(worker)

    # -- a worker's computer

    def _handle(self, worker: int, event: Event) -> None:
        runner = self.runners[worker]
        for command in runner.machine.handle(event, self.now):
            if type(command) is Send:  # by far the most frequent
                self._send(worker, command.to, command.message)
                continue
            match command:
                case Compute(bundle):
                    self._begin(worker, bundle)
                case Cut(stop):
                    assert runner.bundle is not None
                    runner.stop = stop - runner.bundle.start
                case Stop():
                    runner.bundle = None
                    if runner.idle_since_ns is None:
                        runner.idle_since_ns = self.now
                case Push(bundle):
                    self._push(worker, bundle)
                case Discard(bundle):
                    runner.read_ns.pop(bundle, None)
                case ClockDone():
                    runner.wants = True
                    self._at(self.now, self._offer_round, worker)
                case WakeAt(at_ns):
                    self._at(at_ns, self._tick, worker)

    def _begin(self, worker: int, bundle: Bundle) -> None:
        runner = self.runners[worker]
        if runner.idle_since_ns is not None:
            self.outcome.waiting_s += (self.now - runner.idle_since_ns) / SECOND_NS
            runner.idle_since_ns = None
        runner.bundle, runner.stop, runner.done = bundle, bundle.stop - bundle.start, 0
        runner.target = -1
        runner.task += 1
        runner.begun_ns, runner.work = self.now, runner.profile.work_by(self.now / SECOND_NS)
        runner.read_ns.setdefault(bundle, self.now)

    def _plan_wake(self, worker: int) -> None:
        """The next time at which this worker has something to decide: a task's end, a report, a message."""
        runner = self.runners[worker]
        if runner.bundle is None:
            return
        target = runner.stop
        report = runner.machine.next_report_at if runner.machine.computing_own else None
        if report is not None and report - runner.bundle.start > runner.done:
            target = min(target, report - runner.bundle.start)
        if target != runner.target:
            runner.target = target
            runner.generation += 1
            self._at(runner.time_of(target, self.now), self._wake, worker, runner.generation)

    def _plan_check(self, worker: int) -> None:
        """The next look at the mailbox: after a whole number of checks' units, unless something comes before."""
        runner = self.runners[worker]
        check = (runner.units_by(self.now) // self.check_units + 1) * self.check_units
        if check < runner.target:
            self._at(runner.time_of(check, self.now), self._check, worker, runner.task, check)

    def _check(self, worker: int, task: int, units: int) -> None:
        runner = self.runners[worker]
        if worker in self.alive and task == runner.task and runner.mailbox and runner.bundle is not None:
            runner.done = units
            self._handle(worker, Progress(units))
            self._read_mail(worker)

    def _wake(self, worker: int, generation: int) -> None:
        runner = self.runners[worker]
        if worker not in self.alive or generation != runner.generation or runner.bundle is None:
            return
        runner.done, runner.target = runner.target, -1
        if runner.done < runner.stop:
            self._handle(worker, Progress(runner.done))
        else:
            if runner.machine.computing_own and runner.bundle.start == 0:
                seconds = (self.now - runner.begun_ns) / SECOND_NS
                self.policy.measured(Measured(worker, runner.stop, max(seconds, 1e-9), runner.seen))
            runner.bundle = None
            self._handle(worker, TaskDone())
        self._read_mail(worker)

    def _interrupt(self, worker: int, event: Event) -> None:
        """Deliver the controller's news, which does not wait for a check."""
        runner = self.runners[worker]
        if runner.bundle is not None:
            runner.done = runner.units_by(self.now)
            self._handle(worker, Progress(runner.done))
        self._handle(worker, event)
        self._plan_wake(worker)

    def _tick(self, worker: int) -> None:
        if worker in self.alive and self.runners[worker].bundle is None:
            self._handle(worker, Tick())

    # -- rounds

    def _offer_rounds(self) -> None:
        for worker in sorted(self.alive):
            self._offer_round(worker)

    def _offer_round(self, worker: int) -> None:
        runner = self.runners[worker]
        if worker not in self.alive or not runner.wants:
            return
        round_ = runner.machine.clock + 1
        dealt = self.policy.deal(worker, round_, self.version, self.now)
        if dealt is None:
            self._check_barrier()
            return
        if (round_, worker) not in self.dealt:
            for owner, units in dealt.items():
                self.dealt[round_, owner], self.counted[round_, owner] = units, 0
                self.open_units[round_] = self.open_units.get(round_, 0) + units
                self.outcome.units += units
        runner.wants = False
        runner.round_ns, runner.seen = self.now, runner.profile.resources_at(self.now / SECOND_NS)
        self._handle(worker, StartClock(round_, dealt[worker]))
        self._plan_wake(worker)

    def _check_barrier(self) -> None:
        if self.policy.at_barrier:
            self._at(self.now + self._delay_ns() + self._delay_ns(), self._open_barrier)

    def _open_barrier(self) -> None:
        if self.policy.at_barrier:
            self.policy.open_barrier(self.now)
            self.outcome.supersteps += 1
            self._offer_rounds()

    # -- the server

    def _push(self, worker: int, bundle: Bundle) -> None:
        runner = self.runners[worker]
        read_ns = runner.read_ns.pop(bundle, runner.round_ns)
        if bundle.owner == worker and bundle.start == 0:
            read_ns = runner.round_ns
        self._at(self.now + self._delay_ns(), self._count, bundle, worker, read_ns)

    def _count(self, bundle: Bundle, worker: int, read_ns: int) -> None:
        key = (bundle.clock, bundle.owner)
        units = span(bundle.start, bundle.stop)
        redone = bundle.owner in self.gone
        if redone and bundle not in self.redo:  # of an older epoch: its units were dealt out anew
            self.outcome.refused += 1
            return
        if judge(self.counted[key], units) is Verdict.DUPLICATE:
            self.outcome.refused += 1
            return
        self.counted[key] |= units
        self.last_ns = self.now
        self.outcome.log.append(Counted(bundle, worker, read_ns, self.now))
        if worker != bundle.owner:
            if redone:
                self.outcome.redone_units += bundle.stop - bundle.start
            else:
                self.outcome.moved_units += bundle.stop - bundle.start
        self.open_units[bundle.clock] -= bundle.stop - bundle.start
        is_whole = self.counted[key] == span(0, self.dealt[key])
        may_go_on = is_whole and self.policy.counted(bundle.owner, bundle.clock)
        if self.policy.in_clocks and self.open_units.get(self.version) == 0:
            may_go_on = True
            while self.open_units.get(self.version) == 0:
                self.version += 1
                self.outcome.completed_ns.append(self.now)
        if may_go_on:
            for waiting in sorted(self.alive):
                if self.runners[waiting].wants:
                    self._at(self.now + self._delay_ns(), self._offer_round, waiting)

    # -- members

    def _depart(self, departure: Departure) -> None:
        worker = departure.worker
        if worker not in self.alive:
            return
        runner = self.runners[worker]
        self.alive.discard(worker)
        self.left_ns[worker] = self.now
        detect_s = departure.detect_s
        if departure.notice:
            detect_s = 2 * self.network.delay_s
            if runner.bundle is not None and runner.machine.computing_own:
                done = runner.bundle.start + runner.units_by(self.now)
                if done > 0:
                    self._push(worker, Bundle(runner.bundle.clock, worker, 0, done))
        self._at(self.now + round(detect_s * SECOND_NS), self._gone, worker)

    def _gone(self, worker: int) -> None:
        """Tell every worker, and deal out anew the units of the one that left that have not been counted."""
        assert self.alive, "every worker has left"
        self.gone.add(worker)
        self.policy.left(worker)
        again = [
            bundle for bundle, who in self.redo.items() if who == worker and not self._is_counted(bundle)
        ]
        for (round_, owner), units in sorted(self.dealt.items()):
            if owner == worker:
                left = span(0, units) & ~self.counted[round_, owner]
                share = -(-left.bit_count() // len(self.alive)) or 1
                again += [
                    Bundle(round_, owner, first, min(first + share, stop))
                    for start, stop in ranges(left)
                    for first in range(start, stop, share)
                ]
        survivors = sorted(self.alive)
        extra: dict[int, list[Bundle]] = {w: [] for w in survivors}
        for at, bundle in enumerate(again):
            self.redo[bundle] = survivors[at % len(survivors)]
            extra[survivors[at % len(survivors)]].append(bundle)
        for survivor in survivors:
            self._interrupt(survivor, PeerLeft(worker))
            if extra[survivor]:
                self._interrupt(survivor, Redo(tuple(extra[survivor])))
        self._check_barrier()
        self._offer_rounds()

    def _is_counted(self, bundle: Bundle) -> bool:
        return not span(bundle.start, bundle.stop) & ~self.counted[bundle.clock, bundle.owner]
