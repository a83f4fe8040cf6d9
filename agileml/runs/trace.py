"""trace.json of a run: Chrome's trace event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Processes are the controller and the machines, threads are their tracks. A complete event ("ph": "X") is a stretch of
time with `ts` and `dur` in microseconds since the run's start. On a worker's track each clock is an event with pull,
compute and push inside it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from agileml.application import Array
from agileml.core.compute.spans import COLUMNS, NAMES, TRACKS, WORKER, Spans
from agileml.events.run import ClockDone, CutCommitted, MembershipChanged
from agileml.events.schema import Log
from agileml.events.sums import ClocksDone, CutsCommitted
from agileml.runs.folder import TRACE, RunFolder, StorageError
from agileml.runs.work import waiting, work_windows

MOST_SPANS = 2_000_000  # a trace of about 250 MB; viewers hold no more
CONTROLLER_PID = 0
_CATEGORY = {"pull": "exchange", "push": "exchange", "compute": "work", "units": "work"}

Event = Mapping[str, Any]
# Track, name, clock, start and end in microseconds since the run's start.
Span = tuple[int, int, int, int, int]


def complete(pid: int, tid: int, name: str, clock: int, start_us: int, end_us: int) -> Event:
    """A stretch of time."""
    kind = _CATEGORY.get(name, name.split()[0])
    span = {"name": name, "cat": kind, "ph": "X", "ts": start_us, "dur": max(0, end_us - start_us)}
    return {**span, "pid": pid, "tid": tid, "args": {"clock": clock}}


def instant(tid: int, what: str, clock: int, at_us: int) -> Event:
    """Something on a track of the controller that takes no time."""
    mark = {"name": f"{what} {clock}", "cat": what, "ph": "i", "s": "t", "ts": max(0, at_us)}
    return {**mark, "pid": CONTROLLER_PID, "tid": tid, "args": {"clock": clock}}


def counter(what: str, at_s: float, values: Mapping[str, float]) -> Event:
    """Figures of the machines that hold from a moment on, as a graph beside the controller's tracks."""
    args = {name: round(value, 3) for name, value in values.items()}
    return {
        "name": what,
        "ph": "C",
        "ts": max(0, round(at_s * 1e6)),
        "pid": CONTROLLER_PID,
        "tid": 0,
        "args": args,
    }


def named(pid: int, tid: int, what: str, name: str) -> Event:
    """Metadata: the name of a process or of a thread."""
    return {"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {"name": name}}


def machine_events(pid: int, machine: str, rows: Array, start_us: int) -> Iterator[Event]:
    """One machine's spans: an int64 array (n, 5) of track, name, clock, start and end in Unix microseconds."""
    assert rows.ndim == 2, rows.shape
    assert rows.shape[1] == COLUMNS, rows.shape
    yield named(pid, 0, "process_name", machine)
    for track in sorted(set(rows[:, 0].tolist())):
        yield named(pid, track, "thread_name", TRACKS[track])
    spans = list(_in_turn(rows, start_us))
    yield from _clocks(pid, [span for span in spans if span[0] == WORKER])
    for track, name, clock, start, end in spans:
        yield complete(pid, track, NAMES[name], clock, start, end)


def _in_turn(rows: Array, start_us: int) -> Iterator[Span]:
    """The spans in the order of their starts, from the run's start on. Those of a track follow each other.

    When a machine's estimate of the head's clock improves, two spans may overlap by the difference.
    """
    free_from = dict.fromkeys(range(len(TRACKS)), 0)
    for track, name, clock, start, end in rows[np.argsort(rows[:, 3], kind="stable")].tolist():
        start = max(start - start_us, free_from[track])
        end = free_from[track] = max(end - start_us, start)
        yield track, name, clock, start, end


def _clocks(pid: int, spans: Sequence[Span]) -> Iterator[Event]:
    """One event around each group of a worker's consecutive spans of one clock."""
    for clock, group in groupby(spans, key=lambda span: span[2]):
        parts = list(group)
        yield complete(pid, WORKER, f"clock {clock}", clock, parts[0][3], parts[-1][4])


def controller_events(log: Log) -> Iterator[Event]:
    """Changes as stretches, completed clocks and committed cuts as instants, from the log of the run."""
    yield named(CONTROLLER_PID, 0, "process_name", "controller")
    for tid, track in enumerate(("changes", "clocks", "cuts")):
        yield named(CONTROLLER_PID, tid, "thread_name", track)
    clock = 0
    for each in log:
        at_us = round(each.t_s * 1e6)
        match each.event:
            case MembershipChanged() as change:
                name = f"change to epoch {change.epoch}: {change.trigger}"
                start_us = max(0, at_us - round(change.seconds * 1e6))
                yield complete(CONTROLLER_PID, 0, name, clock, start_us, max(start_us, at_us))
            case ClockDone(clock) | ClocksDone(clock=clock):  # of a run of some age, the last of several
                yield instant(1, "clock", clock, at_us)
            case CutCommitted(clock) | CutsCommitted(clock=clock):
                yield instant(2, "cut", clock, at_us)
    for work in work_windows(log):
        yield counter(
            "units per clock",
            work.start_s,
            {name: w.units / work.clocks for name, w in work.by_machine.items()},
        )
        yield counter(
            "waiting, %", work.start_s, {name: 100 * waiting(w) for name, w in work.by_machine.items()}
        )


class Trace:
    """Collects the spans of a run's machines, as many as fit; `write` makes the file."""

    def __init__(self, start_unix_s: float, most: int = MOST_SPANS) -> None:
        self._start_us = round(start_unix_s * 1e6)
        self._most = most
        self._rows: dict[str, list[Array]] = {}
        self._received: Counter[str] = Counter()
        self._reached: Counter[str] = Counter()
        self.recorded = 0
        self.dropped = 0

    def add(self, machine: str, spans: Spans) -> None:
        """A batch of a machine's spans; spans beyond the limit are counted and left out."""
        rows, room = spans.rows, self._most - self.recorded
        kept = rows[: max(0, room)]
        self.dropped += len(rows) - len(kept)
        self.recorded += len(kept)
        self._rows.setdefault(machine, []).append(kept)
        self._received[machine] += len(rows)
        self._reached[machine] = max(self._reached[machine], spans.recorded)

    def received(self, machine: str) -> int:
        """The number of a machine's spans received, kept or not."""
        return self._received[machine]

    def reached(self, machine: str) -> int:
        """How many spans the machine had recorded when it sent the latest of those received."""
        return self._reached[machine]

    def events(self, log: Log) -> Iterator[Event]:
        yield from controller_events(log)
        for pid, machine in enumerate(self._rows, start=1):
            yield from machine_events(pid, machine, np.concatenate(self._rows[machine]), self._start_us)

    def write(self, folder: Path, log: Log) -> list[str]:
        """trace.json in a run's folder. Returns sentences about what is not there: no run fails for want of a trace."""
        lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in self.events(log))
        head = f'"displayTimeUnit":"ms","otherData":{{"dropped_spans":{self.dropped}}}'
        try:
            RunFolder.write_text(folder / TRACE, f'{{{head},"traceEvents":[\n{lines}\n]}}\n')
        except StorageError as error:
            return [str(error)]
        return [f"{TRACE} is full: {self.dropped} of its stretches are not in it"] if self.dropped else []
