"""The work of a run's machines over time, their waiting, their help and where their time went, of bounded size."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from agileml.events.run import (
    BytesSent,
    ClockDone,
    HelpGiven,
    MembershipChanged,
    RunRestarted,
    WorkDone,
    WorkersSpent,
)
from agileml.events.schema import RunEvent
from agileml.events.sums import ClocksDone
from agileml.runs.help import HelpSums
from agileml.runs.work import WorkWindow, machines_of, merged, waiting, waiting_share, whole_windows

MOST_WINDOWS = 120
MOST_CLOCKS = 2000  # whose times are known
MOST_MACHINES = 8  # with a curve of their own
MOST_BARS = 16
MOST_SPENT = 1000
MOST_HELP = 60
BUSY = ("compute", "pull", "push", "fold", "frozen")  # what a worker does while it has work


class WorkView:
    """Takes events; `as_json` has the parts of the page about work."""

    def __init__(self) -> None:
        self._windows: list[WorkWindow] = []  # by epoch and clock
        self._times: list[tuple[int, float]] = []  # of the newest clocks: clock, when it was complete
        self._begin_s = 0.0
        self._help, self._newest_help = HelpSums(), (0, 0)
        self._helps: Counter[str] = Counter()  # by helper, units in the newest window of help
        self._spent: dict[str, Mapping[str, float]] = {}
        self._bytes_before: Counter[str] = Counter()  # of earlier heads
        self._bytes: Mapping[str, int] = {}

    def add(self, t_s: float, event: RunEvent) -> None:
        """Take the next event."""
        self._help.add(event)
        match event:
            case ClockDone(clock) | ClocksDone(clock=clock):
                del self._times[bisect_left(self._times, (clock, 0.0)) :]  # those that a rollback does again
                self._times.append((clock, t_s))
                if len(self._times) > 2 * MOST_CLOCKS:
                    del self._times[:MOST_CLOCKS]
            case MembershipChanged():
                self._begin_s = self._begin_s or t_s
            case WorkDone():
                self._work(t_s, event)
            case HelpGiven(epoch, clock, _, units):
                if self._newest_help != (epoch, clock):
                    self._newest_help, self._helps = (epoch, clock), Counter()
                for helper, helped in units.items():
                    self._helps[helper] += sum(helped.values())
            case WorkersSpent(by_machine):
                for machine, seconds in by_machine.items():
                    self._spent.pop(machine, None)
                    self._spent[machine] = seconds
                if len(self._spent) > 2 * MOST_SPENT:
                    self._spent = dict(list(self._spent.items())[-MOST_SPENT:])
            case BytesSent(by_kind):
                self._bytes = by_kind
            case RunRestarted():
                self._bytes_before.update(self._bytes)
                self._bytes = {}

    def _work(self, t_s: float, event: WorkDone) -> None:
        """Put the event into the window that has its clocks, or make one."""
        at = bisect_left(self._windows, (event.epoch, event.clock), key=lambda each: (each.epoch, each.clock))
        first = event.clock - event.clocks
        new = WorkWindow(
            event.epoch,
            event.clock,
            event.clocks,
            self._reached(first, self._begin_s or t_s),
            self._reached(event.clock, t_s),
            event.by_machine,
        )
        if at < len(self._windows) and self._windows[at].epoch == event.epoch:
            window = self._windows[at]
            if window.clock - window.clocks <= first:
                part = replace(new, start_s=window.start_s, end_s=window.end_s)
                self._windows[at] = merged(window, part)
                return
        self._windows.insert(at, new)
        if len(self._windows) > 2 * MOST_WINDOWS:
            pairs = zip(self._windows[::2], self._windows[1::2], strict=False)
            # The newest one stays as it is: it is the present.
            self._windows = [merged(one, other) for one, other in pairs] + self._windows[-1:]

    def _reached(self, clock: int, otherwise_s: float) -> float:
        """When so many clocks were complete."""
        at = bisect_left(self._times, (clock, 0.0))
        is_known = at < len(self._times) and (at > 0 or self._times[0][0] == clock)
        return self._times[at][1] if is_known else otherwise_s

    def as_json(self, gone: set[str]) -> dict[str, Any]:
        """The newest shares, without the machines that are `gone`, and everything over time."""
        return {
            "work": self._newest(gone),
            **self._over_time(),
            "spent": self._most_spent(),
            "bytes": dict(self._bytes_before + Counter(self._bytes)),
            "help": [
                [row.helper, row.helped, row.units, row.share, row.spared_s]
                for row in self._help.rows()[:MOST_HELP]
            ],
        }

    def _newest(self, gone: set[str]) -> dict[str, tuple[float, float, int]]:
        """By machine: its share of the units, the share of its time that it waited, its units for others."""
        if not (whole := whole_windows(self._windows)):
            return {}
        newest = whole[-1]
        works = {name: work for name, work in newest.by_machine.items() if name not in gone}
        units = sum(work.units for work in works.values()) or 1
        # Nothing is reported where nobody helps: the last window of help may be long over.
        is_present = self._newest_help > (newest.epoch, newest.clock - newest.clocks)
        return {
            name: (work.units / units, waiting(work), self._helps[name] if is_present else 0)
            for name, work in sorted(works.items())
        }

    def _over_time(self) -> dict[str, Any]:
        """`waiting`: (t_s, share) of all; `shares`: names, when they begin, and rows of (t_s, shares of the units in %,
        waiting in %), both by name; a row tells of the time since the row before."""
        whole = whole_windows(self._windows)
        ends_s = list(accumulate((window.end_s for window in whole), max))
        names = machines_of(whole, MOST_MACHINES)
        rows = []
        for end_s, window in zip(ends_s, whole, strict=True):
            units = max(1, sum(work.units for work in window.by_machine.values()))
            works = [window.by_machine.get(name) for name in names]
            of_units = [0.0 if work is None else round(100 * work.units / units, 2) for work in works]
            waits = [None if work is None else round(100 * waiting(work), 2) for work in works]
            rows.append((end_s, of_units, waits))
        return {
            "waiting": [
                (end_s, waiting_share([window]) or 0.0) for end_s, window in zip(ends_s, whole, strict=True)
            ],
            "waiting_share": waiting_share(whole),
            "shares": {"names": names, "from_s": whole[0].start_s if whole else 0.0, "rows": rows},
        }

    def _most_spent(self) -> dict[str, Mapping[str, float]]:
        """The seconds of the machines whose workers had most work, by activity, without those that it was idle."""
        busy = {
            machine: {what: s for what, s in seconds.items() if what in BUSY and s > 0}
            for machine, seconds in self._spent.items()
        }
        most = sorted(busy, key=lambda machine: -sum(busy[machine].values()))[:MOST_BARS]
        in_order = sorted(most, key=lambda machine: (len(machine), machine))
        return {machine: busy[machine] for machine in in_order if busy[machine]}
