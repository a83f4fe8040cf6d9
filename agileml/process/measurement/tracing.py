"""Records a profile in the processes of a run, one tuple per span, if the config has `profile`.

Machines have clocks of their own. Each asks the head for the time with every batch of spans, and keeps the answer with
the shortest round trip: the error is at most half of that. Machines on one host share a clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from agileml.config.job import JobConfig
from agileml.core.compute import spans
from agileml.core.compute.spans import Spans
from agileml.core.node.node import Node
from agileml.core.node.time_spent import INDEX, Doing
from agileml.core.protocol.commands import Begin, Compute, LoadSlices
from agileml.core.protocol.messages import (
    Announce,
    Copy,
    Fetch,
    Get,
    Message,
    NameCut,
    Params,
    Part,
    PartAck,
    Prepare,
    Pull,
    Push,
)
from agileml.process.compute_backend import ComputeBackend
from agileml.process.user_failures import ComputeJob

_SERVING: dict[type, int] = {
    Push: spans.FOLD,
    Pull: spans.ANSWER,
    Params: spans.TAKE,
    NameCut: spans.CUT,
    Part: spans.CUT,
    PartAck: spans.CUT,
    Prepare: spans.CHANGE,
    Fetch: spans.CHANGE,
    Get: spans.CHANGE,
    Copy: spans.CHANGE,
    Announce: spans.CHANGE,
}


@dataclass(frozen=True)
class Ping:
    """Machine to head: asks for the time, at `sent_s` by its own clock."""

    sent_s: float


@dataclass(frozen=True)
class Pong:
    """Head to machine: the time of the question, and the time of the head."""

    sent_s: float
    head_s: float


class HeadClock:
    """A machine's estimate of the head's clock: its own plus `offset_s`."""

    def __init__(self, *, is_same_host: bool) -> None:
        self.offset_s = 0.0
        self.is_exact = is_same_host
        self._best_s = 0.0 if is_same_host else float("inf")

    def answered(self, pong: Pong, now_s: float) -> None:
        """Take an answer; the one with the shortest round trip counts."""
        way_s = now_s - pong.sent_s
        if 0 <= way_s < self._best_s:
            self._best_s = way_s
            self.offset_s = pong.head_s - (pong.sent_s + now_s) / 2


def recorder(config: JobConfig, node: Node, compute: ComputeBackend, is_same_host: bool) -> Recorder | None:
    """Start to record this machine; None without a profile."""
    if not config.profile:
        return None
    found = Recorder(HeadClock(is_same_host=is_same_host))
    node.spent.on_span = found.worked
    compute.on_done = found.did
    return found


class Recorder:
    """The spans of one machine. Any thread may add some."""

    def __init__(self, clock: HeadClock) -> None:
        self.clock = clock
        self._spans: deque[tuple[int, int, int, float, float]] = deque()
        self._taken = 0
        self._promised = self._viewed = 0
        self._frozen_since_s: float | None = None
        self._parts: set[int] = set()
        self._cut_clock, self._cut_since_s = 0, 0.0

    def add(self, track: int, name: int, clock: int, start_s: float, end_s: float) -> None:
        """Record a span."""
        self._spans.append((track, name, clock, start_s, end_s))

    def worked(self, doing: Doing, clock: int, start_s: float, end_s: float) -> None:
        """Record an activity of the worker, which ended at `end_s`."""
        if doing is not Doing.IDLE:
            self.add(spans.WORKER, INDEX[doing], clock, start_s, end_s)

    def did(self, job: ComputeJob, start_s: float, end_s: float) -> None:
        """Record a job that the compute thread has finished."""
        name = {Compute: spans.UNITS, Begin: spans.READ, LoadSlices: spans.LOAD}[type(job)]
        self.add(spans.COMPUTING, name, -1 if isinstance(job, LoadSlices) else job.clock, start_s, end_s)

    def served(self, node: Node, message: Message, start_s: float, end_s: float) -> None:
        """Record a message that the serving thread has handled."""
        name = _SERVING.get(type(message))
        if name is not None:
            clock = node.worker.clock if name == spans.CHANGE else getattr(message, "clock", -1)
            self.add(spans.SERVING, name, clock, start_s, end_s)
        self._follow_change(node, start_s, end_s)
        if isinstance(message, PartAck) and self._parts:
            self._parts.discard(message.partition)
            if not self._parts:
                self.add(spans.CUTS, spans.CUT, self._cut_clock, self._cut_since_s, end_s)
                self._cut_since_s = end_s

    def sent_part(self, part: Part, now_s: float) -> None:
        """Record that a part of a cut goes to its backup."""
        if part.cut.clock != self._cut_clock:
            self._parts.clear()  # an older cut, abandoned
        if not self._parts:
            self._cut_clock, self._cut_since_s = part.cut.clock, max(now_s, self._cut_since_s)
        self._parts.add(part.partition)

    def _follow_change(self, node: Node, start_s: float, end_s: float) -> None:
        """Record a change, from the promise of an epoch to its view, or to that of a later one."""
        viewed = node.view.epoch if node.view else 0
        if node.promised > self._promised and self._frozen_since_s is None and viewed < node.promised:
            self._frozen_since_s = start_s
        self._promised = node.promised
        if viewed > self._viewed and self._frozen_since_s is not None:
            self.add(spans.CHANGES, spans.CHANGE, node.worker.clock, self._frozen_since_s, end_s)
            self._frozen_since_s = None
        self._viewed = viewed

    def report(self, now_s: float) -> list[Ping | Spans]:
        """Messages to the head: the spans since the last call, by the head's clock, and a question for the time."""
        messages: list[Ping | Spans] = [] if self.clock.is_exact else [Ping(now_s)]
        spans = self.end()
        return [*messages, spans] if len(spans.rows) else messages

    def end(self) -> Spans:
        """The spans since the last report, by the head's clock; they are not reported again."""
        rows = [self._spans.popleft() for _ in range(len(self._spans))]
        self._taken += len(rows)
        table = np.array([row[:3] for row in rows], np.int64).reshape(-1, 3)
        times = np.array([row[3:] for row in rows], np.float64).reshape(-1, 2) + self.clock.offset_s
        return Spans(np.hstack([table, np.rint(times * 1e6).astype(np.int64)]), self._taken)
