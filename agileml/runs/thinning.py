"""How the log of a run stays small: frequent events are summed up over an interval that grows with the run's age.

A run's first ten minutes are logged whole. Later clocks, cuts, work and totals become one line in each interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from agileml.events.market import Billed
from agileml.events.run import (
    NO_WORK,
    BytesSent,
    ClockDone,
    CutCommitted,
    HelpGiven,
    MembershipChanged,
    RunFailed,
    RunFinished,
    RunStopped,
    Work,
    WorkDone,
    WorkersSpent,
)
from agileml.events.schema import Logged, RunEvent
from agileml.events.sums import ClocksDone, CutsCommitted, Standing

HOUR_S = 3600.0
# Pairs of the run's age and the interval, in s.
INTERVALS = (
    (0.0, 0.0),
    (600.0, 1.0),
    (6 * HOUR_S, 10.0),
    (48 * HOUR_S, 60.0),
)
TOTALS = (BytesSent, WorkersSpent, Standing, Billed)  # the last one of an interval says all
BY_MACHINE = 60.0  # events with a figure for every machine come so much more rarely
T = TypeVar("T", bound=RunEvent)


def interval_s(age_s: float) -> float:
    """Seconds that one line of frequent events stands for when the run is so old; 0: each has its own line."""
    return next(length_s for since_s, length_s in reversed(INTERVALS) if age_s >= since_s or not since_s)


@dataclass
class _Sum:
    """The events of one kind since `start_s`, as one event; `t_s` is the time of the last."""

    start_s: float
    t_s: float
    event: RunEvent


class Thinning:
    """Takes every event of a run in turn and returns what to write now."""

    def __init__(self) -> None:
        self._open: dict[type[RunEvent], _Sum] = {}
        self._written_s: dict[type[RunEvent], float] = {}

    def take(self, t_s: float, event: RunEvent) -> list[Logged[RunEvent]]:
        """The lines to write for an event that happened at `t_s`, and for those that it completes."""
        match event:
            case ClockDone() | CutCommitted() | WorkDone() | HelpGiven():
                return self._summed(t_s, event)
            case BytesSent() | WorkersSpent() | Standing() | Billed():
                return self._latest(t_s, event)
            case MembershipChanged():  # totals go on over it; with every machine in each they are long
                return [*self._take_back(lambda kind: kind not in TOTALS), Logged(t_s, event)]
            case RunStopped() | RunFailed() | RunFinished():
                return [*self.rest(), Logged(t_s, event)]
        return [Logged(t_s, event)]

    def rest(self) -> list[Logged[RunEvent]]:
        """The lines that are held back; afterwards none is."""
        return self._take_back(lambda kind: True)

    def _take_back(self, is_wanted: Callable[[type[RunEvent]], bool]) -> list[Logged[RunEvent]]:
        left = {kind: each for kind, each in self._open.items() if is_wanted(kind)}
        self._open = {kind: each for kind, each in self._open.items() if kind not in left}
        return sorted((Logged(each.t_s, each.event) for each in left.values()), key=lambda line: line.t_s)

    def _summed(
        self, t_s: float, event: ClockDone | CutCommitted | WorkDone | HelpGiven
    ) -> list[Logged[RunEvent]]:
        length_s = interval_s(t_s) * (BY_MACHINE if isinstance(event, WorkDone | HelpGiven) else 1.0)
        done: list[Logged[RunEvent]] = []
        kind, before = type(event), self._open.pop(type(event), None)
        if before is not None:
            both = summed(before.event, event) if t_s - before.start_s < length_s else None
            if both is not None:
                self._open[kind] = _Sum(before.start_s, t_s, both)
                return []
            done.append(Logged(before.t_s, before.event))
        if not length_s:
            return [*done, Logged(t_s, event)]
        self._open[kind] = _Sum(t_s, t_s, event)
        return done

    def _latest(
        self, t_s: float, event: BytesSent | WorkersSpent | Standing | Billed
    ) -> list[Logged[RunEvent]]:
        length_s = interval_s(t_s) * (BY_MACHINE if isinstance(event, WorkersSpent) else 1.0)
        if t_s - self._written_s.get(type(event), -math.inf) < length_s:
            self._open[type(event)] = _Sum(t_s, t_s, _with_gone(self._open.get(type(event)), event))
            return []
        self._written_s[type(event)] = t_s
        return [Logged(t_s, _with_gone(self._open.pop(type(event), None), event))]


def _with_gone(before: _Sum | None, event: T) -> T | WorkersSpent:
    """`event` with the machines that left since the last line: their last figures count."""
    if isinstance(event, WorkersSpent) and before is not None and isinstance(before.event, WorkersSpent):
        return WorkersSpent({**before.event.by_machine, **event.by_machine})
    return event


def summed(one: RunEvent, other: RunEvent) -> RunEvent | None:
    """Two events that follow each other as one; None where they do not belong together."""
    match one, other:
        case (ClockDone() | ClocksDone(), ClockDone()):
            return _clocks(one, other)
        case CutCommitted(), CutCommitted():
            return CutsCommitted(2, other.clock, (one.travel_s + other.travel_s) / 2)
        case CutsCommitted(count, _, travel_s), CutCommitted():
            mean_s = (count * travel_s + other.travel_s) / (count + 1)
            return CutsCommitted(count + 1, other.clock, mean_s)
        case WorkDone(), WorkDone() if one.epoch == other.epoch and one.clock <= other.clock:
            return _work(one, other)
        case HelpGiven(), HelpGiven() if one.epoch == other.epoch and one.clock <= other.clock:
            return _help(one, other)
    return None


def _clocks(one: ClockDone | ClocksDone, other: ClockDone) -> ClocksDone | None:
    if other.clock != one.clock + 1 or other.seconds is None:
        return None  # clocks are done again, or some were not reported
    first = one.first if isinstance(one, ClocksDone) else one.clock
    longest_s = one.longest_s if isinstance(one, ClocksDone) else one.seconds or 0.0
    seconds = (one.seconds or 0.0) + other.seconds
    return ClocksDone(
        first,
        other.clock,
        _mean_loss(one, other, one.clock - first + 1),
        one.examples + other.examples,
        seconds,
        max(longest_s, other.seconds),
    )


def _mean_loss(one: ClockDone | ClocksDone, other: ClockDone, clocks: int) -> float:
    """Over the examples of both; where units count none, over the clocks, of which `one` has so many. A clock of mixed
    precision that was skipped, whose loss is not finite, counts as its neighbours do."""
    if not math.isfinite(other.loss):
        return one.loss
    if not math.isfinite(one.loss):
        return other.loss
    weight, more = (one.examples, other.examples) if one.examples + other.examples else (clocks, 1)
    return (one.loss * weight + other.loss * more) / (weight + more)


def _work(one: WorkDone, other: WorkDone) -> WorkDone:
    """Both windows as one; a window may come in several events."""
    first = min(one.clock - one.clocks, other.clock - other.clocks)
    by_machine = works_of_both(one.by_machine, other.by_machine)
    return replace(other, clocks=other.clock - first, by_machine=by_machine)


def works_of_both(one: Mapping[str, Work], other: Mapping[str, Work]) -> dict[str, Work]:
    """The work of two windows, or of two parts of one, by machine."""
    return {**one, **{name: one.get(name, NO_WORK) + work for name, work in other.items()}}


def _help(one: HelpGiven, other: HelpGiven) -> HelpGiven:
    units = {helper: dict(given) for helper, given in one.units.items()}
    for helper, given in other.units.items():
        mine = units.setdefault(helper, {})
        for helped, count in given.items():
            mine[helped] = mine.get(helped, 0) + count
    first = min(one.clock - one.clocks, other.clock - other.clocks)
    return replace(other, clocks=other.clock - first, units=units)


def begun_s(t_s: float, event: ClockDone | ClocksDone) -> float:
    """When the first of the clocks of an event was complete; the clock before it, if its own seconds are known. Those
    of the first one after a restart are not: no clock of an event of several tells of the time before it."""
    return t_s - event.seconds if isinstance(event, ClocksDone) else t_s


def clocks_of(log: Iterable[Logged[RunEvent]]) -> list[Logged[ClockDone]]:
    """The clocks of a log with their times. One that stands for several has their mean loss and their mean seconds."""
    found: list[Logged[ClockDone]] = []
    for each in log:
        match each.event:
            case ClockDone():
                found.append(Logged(each.t_s, each.event))
            case ClocksDone(first, clock, loss, examples, seconds):
                count = clock - first + 1
                mean = ClockDone(clock, loss, round(examples / count), seconds / count)
                found.append(Logged(each.t_s, mean))
    return found
