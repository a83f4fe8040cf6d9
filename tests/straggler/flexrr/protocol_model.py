"""FlexRR's own state machines over an adversary: any order, any delay, losses, doubles, deaths.

There are no speeds here: at every step a seeded scheduler picks a worker that computes a little, a message
that arrives, a timer, a start, a death. Checked as it goes: bundles are equal or disjoint; without deaths each
is pushed once; a clock starts only when all clocks older than the slack are counted; nobody helps with items it
does not hold. At the end every unit is counted, or the run is a deadlock.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from straggler.coverage import Verdict, judge, ranges, span
from straggler.flexrr.groups import helper_groups
from straggler.flexrr.protocol import (
    BegunHelping,
    Bundle,
    ClockDone,
    Compute,
    Cut,
    Discard,
    FlexRrParameters,
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


class ViolationError(AssertionError):
    """A rule was broken."""


@dataclass
class Worker:
    machine: object
    weight: float
    bundle: Bundle | None = None
    stop: int = 0
    done: int = 0
    wake_ns: int | None = None
    clocks_done: int = 0
    alive: bool = True


@dataclass
class Model:
    """One random schedule; `run` returns how often each thing happened."""

    machine_class: type
    seed: int
    seen: Counter = field(default_factory=Counter)

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        self.n = rng.randint(2, 5)
        machines = rng.randint(1, self.n)
        self.slack = rng.choice([0, 1, 1, 2])
        self.clocks = rng.randint(2, 3)
        self.units = rng.randint(6, 16)
        most = min(machines - 1 + (self.n // machines > 1), 4)
        while True:
            try:
                groups = helper_groups(self.n, machines, rng.randint(min(1, most), most))
                break
            except ValueError:
                most -= 1
        self.parameters = FlexRrParameters(
            group_size=4,
            initial=rng.choice([0.1, 0.2]),
            follow_up=rng.choice([0.2, 0.4]),
            threshold=rng.choice([0.01, 0.2]),
            checkpoint=rng.choice([0.3, 0.5, 0.75]),
            replication=rng.choice([1.0, 1.0, 0.5]),
            resend_ns=50,
        )
        self.loss = rng.choice([0.0, 0.0, 0.1, 0.3])
        self.double = rng.choice([0.0, 0.0, 0.2])
        self.haste = rng.choice([0.3, 1.0, 4.0])  # of messages
        self.deaths = rng.choice([0, 0, 1, 2]) if self.n > 2 else 0
        self.workers = [
            Worker(
                self.machine_class(w, groups.helpers[w], groups.helpees[w], self.parameters),
                rng.choice([0.05, 0.3, 1.0, 1.0, 3.0]),
            )
            for w in range(self.n)
        ]
        self.now = 0
        self.flying: list[tuple[int, int, object]] = []
        self.counted = {(c, w): 0 for c in range(self.clocks) for w in range(self.n)}
        self.undetected: list[int] = []
        self.gone: set[int] = set()
        self.redo: dict[Bundle, int] = {}
        self.killed = 0

    def run(self) -> Counter:
        """Until all is counted. Raises ViolationError."""
        for _ in range(6000):
            if all(units == span(0, self.units) for units in self.counted.values()):
                for worker in self.workers:  # nobody may push any more than is counted
                    assert not worker.alive or worker.clocks_done <= self.clocks
                return self.seen
            self.step()
        missing = {key: ranges(span(0, self.units) & ~units) for key, units in self.counted.items()}
        raise ViolationError(f"deadlock: {[item for item in missing.items() if item[1]]} never counted")

    def step(self) -> None:
        rng, choices, weights = self.rng, [], []
        for w, worker in enumerate(self.workers):
            if not worker.alive:
                continue
            if worker.bundle is not None:
                choices.append((self.compute, w))
                weights.append(worker.weight)
            elif worker.wake_ns is not None and (worker.wake_ns <= self.now or not self.flying):
                choices.append((self.tick, w))
                weights.append(0.3)
            if worker.clocks_done == worker.machine.clock + 1 < self.clocks and self.may_start(worker):
                choices.append((self.start, w))
                weights.append(worker.weight)
        if self.flying:
            choices.append((self.deliver, rng.randrange(len(self.flying))))
            weights.append(self.haste)
        if self.undetected:
            choices.append((self.detect, self.undetected[0]))
            weights.append(0.1)
        if self.killed < self.deaths:
            choices.append((self.kill, rng.randrange(self.n)))
            weights.append(0.02)
        self.now += rng.randint(0, 10)
        if choices:
            action, argument = rng.choices(choices, weights)[0]
            action(argument)

    # -- actions

    def may_start(self, worker: Worker) -> bool:
        """As in LazyTable: by what the workers say they have done."""
        slowest = min(other.clocks_done for w, other in enumerate(self.workers) if w not in self.gone)
        return worker.clocks_done - self.slack <= slowest

    def start(self, w: int) -> None:
        clock = self.workers[w].clocks_done
        for old in range(clock - self.slack):
            for owner in range(self.n):
                if owner not in self.gone and self.counted[old, owner] != span(0, self.units):
                    raise ViolationError(f"slack: {w} starts clock {clock}, but {owner} has not all of {old}")
        self.obey(w, StartClock(clock, self.units))

    def compute(self, w: int) -> None:
        worker = self.workers[w]
        worker.done = min(worker.stop, worker.done + self.rng.randint(1, 4))
        if worker.done == worker.stop:
            worker.bundle = None
            self.obey(w, TaskDone())
        else:
            self.obey(w, Progress(worker.done))

    def tick(self, w: int) -> None:
        self.workers[w].wake_ns = None
        self.obey(w, Tick())

    def deliver(self, at: int) -> None:
        sender, to, message = self.flying[at]
        if self.rng.random() >= self.double:
            self.flying.pop(at)
        else:
            self.seen["doubled"] += 1
        worker = self.workers[to]
        if self.rng.random() < self.loss:
            self.seen["lost"] += 1
        elif worker.alive and sender not in self.gone:
            self.report_progress(to)
            self.obey(to, Received(sender, message))

    def report_progress(self, w: int) -> None:
        if self.workers[w].bundle is not None:
            self.obey(w, Progress(self.workers[w].done))

    def kill(self, w: int) -> None:
        if sum(worker.alive for worker in self.workers) > 2 and self.workers[w].alive:
            self.workers[w].alive = False
            self.killed += 1
            self.seen["death"] += 1
            self.undetected.append(w)

    def detect(self, dead: int) -> None:
        """The controller's part: all hear of it, and what was not counted of the dead's share is dealt anew."""
        self.undetected.remove(dead)
        self.gone.add(dead)
        alive = [w for w, worker in enumerate(self.workers) if w not in self.gone]
        again = [b for b, who in self.redo.items() if who == dead]
        for clock in range(self.clocks):
            left = span(0, self.units) & ~self.counted[clock, dead]
            again += [Bundle(clock, dead, start, stop) for start, stop in ranges(left)]
        for w in alive:
            if self.workers[w].alive:
                self.report_progress(w)
                self.obey(w, PeerLeft(dead))
        for at, bundle in enumerate(again):
            who = alive[at % len(alive)]
            self.redo[bundle] = who
            if self.workers[who].alive:
                self.report_progress(who)
                self.obey(who, Redo((bundle,)))

    # -- commands

    def obey(self, w: int, event: object) -> None:
        worker = self.workers[w]
        for command in worker.machine.handle(event, self.now):
            match command:
                case Send(to, message):
                    self.seen[type(message).__name__] += 1
                    self.flying.append((w, to, message))
                    if isinstance(message, BegunHelping):
                        tail = (1 - self.parameters.replication) * self.units
                        if message.assignment.bundle.start < tail:
                            raise ViolationError(f"{w} was given items that it does not hold")
                case Compute(bundle):
                    worker.bundle, worker.stop, worker.done = bundle, bundle.stop - bundle.start, 0
                    if worker.stop == 0:
                        raise ViolationError(f"{w} is to compute nothing: {bundle}")
                case Cut(stop):
                    worker.stop = stop - worker.bundle.start
                case Stop():
                    worker.bundle = None
                case Push(bundle):
                    self.count(w, bundle)
                case Discard(_):
                    self.seen["both started"] += 1
                case ClockDone(clock):
                    worker.clocks_done = clock + 1
                case WakeAt(at_ns):
                    worker.wake_ns = at_ns

    def count(self, w: int, bundle: Bundle) -> None:
        if bundle.owner in self.gone and self.redo.get(bundle) != w:
            return  # of an older epoch
        key = (bundle.clock, bundle.owner)
        try:
            verdict = judge(self.counted[key], span(bundle.start, bundle.stop))
        except ValueError as error:
            raise ViolationError(str(error)) from error
        if verdict is Verdict.DUPLICATE:
            self.seen["duplicate"] += 1
            if not self.killed:
                raise ViolationError(f"{bundle} pushed twice, with nobody dead")
        self.counted[key] |= span(bundle.start, bundle.stop)
        self.seen["moved" if w != bundle.owner else "own"] += bundle.stop - bundle.start
