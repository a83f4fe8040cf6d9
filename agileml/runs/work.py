"""The work of a run's machines over time: the units that each computed, and the time that it waited."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agileml.events.run import MembershipChanged, Work, WorkDone
from agileml.events.schema import Log, events_of, of_type
from agileml.runs.thinning import clocks_of, works_of_both


@dataclass(frozen=True)
class WorkWindow:
    """The work of `clocks` clocks before `clock` were complete, from `start_s` to `end_s` of the log."""

    epoch: int
    clock: int
    clocks: int
    start_s: float
    end_s: float
    by_machine: Mapping[str, Work]


def work_windows(log: Log) -> list[WorkWindow]:
    """The windows of the log, each with what all its events say, in the order of time.

    Without the last one if the run ended before all its machines had reported.
    """
    found: dict[tuple[int, int, int], WorkWindow] = {}
    for event in events_of(log, WorkDone):
        key = event.epoch, event.clock, event.clocks
        part = WorkWindow(*key, 0.0, 0.0, event.by_machine)
        found[key] = merged(found[key], part) if key in found else part
    windows = whole_windows([found[key] for key in sorted(found)])
    times = _Times(log)
    return [
        WorkWindow(
            each.epoch,
            each.clock,
            each.clocks,
            *times.of(each.epoch, each.clock - each.clocks, each.clock),
            dict(sorted(each.by_machine.items())),
        )
        for each in windows
    ]


def whole_windows(windows: Sequence[WorkWindow]) -> Sequence[WorkWindow]:
    """The windows, in the order of time, without the last one while some of its machines have not reported."""
    if len(windows) < 2 or windows[-1].epoch != windows[-2].epoch:
        return windows
    is_half = windows[-1].by_machine.keys() < windows[-2].by_machine.keys()
    return windows[:-1] if is_half else windows


def merged(one: WorkWindow, other: WorkWindow) -> WorkWindow:
    """Two windows as one, or two parts of one. The later one is `other`, unless it is a part of `one`."""
    works = works_of_both(one.by_machine, other.by_machine)
    last = one if (one.epoch, one.clock) >= (other.epoch, other.clock) else other
    first = min(one.clock - one.clocks, other.clock - other.clocks)
    start_s, end_s = min(one.start_s, other.start_s), max(one.end_s, other.end_s)
    return WorkWindow(last.epoch, last.clock, last.clock - first, start_s, end_s, works)


class _Times:
    """When clocks were complete, by the epoch in which they were computed."""

    def __init__(self, log: Log) -> None:
        changes = of_type(log, MembershipChanged)
        self._begin_s = {each.event.epoch: each.t_s for each in changes}
        ends_s = [each.t_s for each in (*changes, *log[-1:])][1:]
        self._end_s = {each.event.epoch: end_s for each, end_s in zip(changes, ends_s, strict=False)}
        self._done = [(done.t_s, done.event.clock) for done in clocks_of(log)]

    def of(self, epoch: int, before: int, clock: int) -> tuple[float, float]:
        """(start, end) of the clocks from `before` complete ones to `clock`, as far as the epoch goes."""
        begin_s, end_s = self._begin_s.get(epoch, 0.0), self._end_s.get(epoch, 0.0)
        low = bisect_left(self._done, begin_s, key=lambda done: done[0])
        high = bisect_right(self._done, end_s, key=lambda done: done[0])
        start_s = self._reached(before, low, high, begin_s)
        return start_s, max(start_s, min(end_s, self._reached(clock, low, high, end_s)))

    def _reached(self, clock: int, low: int, high: int, otherwise_s: float) -> float:
        """When so many clocks were complete; within an epoch their number only grows."""
        at = bisect_left(self._done, clock, low, high, key=lambda done: done[1])
        is_there = at < high and (self._done[at][1] == clock or at > low)
        return self._done[at][0] if is_there else otherwise_s


def waiting(work: Work) -> float:
    """The share of its time that a machine waited."""
    whole_s = work.compute_s + work.wait_s
    return work.wait_s / whole_s if whole_s else 0.0


def waiting_share(windows: Iterable[WorkWindow]) -> float | None:
    """The share of their time that all machines together waited; None if nothing was computed."""
    works = [work for window in windows for work in window.by_machine.values()]
    compute_s, wait_s = sum(work.compute_s for work in works), sum(work.wait_s for work in works)
    return wait_s / (compute_s + wait_s) if compute_s else None


def machines_of(windows: Sequence[WorkWindow], most: int) -> list[str]:
    """The machines with the most units, at most `most` of them, in the order of their names."""
    units: dict[str, int] = {}
    for window in windows:
        for name, work in window.by_machine.items():
            units[name] = units.get(name, 0) + work.units
    chosen = sorted(units, key=lambda name: (-units[name], name))[:most]
    return sorted(chosen, key=lambda name: (len(name), name))
