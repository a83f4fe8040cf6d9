"""The computation of a range that was given away: by the helper, or by the worker that takes it back.

Its parameters are pulled anew, even by its owner: what that read for the clock may be overwritten by now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agileml.application import Array
from agileml.core.compute.cursor import Cursor
from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.commands import Begin, Begun, Compute, Computed
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.help_messages import HelpParams, HelpPull
from agileml.core.protocol.view import View
from straggler.coverage import Units
from straggler.flexrr.tasks import Task

Rows = tuple[tuple[Array | None, ...], ...]


@dataclass
class GivenRange:
    """A range under way: its parameters as they arrive, and its contributions by bundle and partition."""

    task: Task
    number: int
    begin: Begin
    cursor: Cursor
    rows: Rows | None = None
    parts: dict[int, tuple[Array, ...]] = field(default_factory=dict)
    found: dict[Units, dict[int, Contribution]] = field(default_factory=dict)
    compute_s: dict[Units, float] = field(default_factory=dict)


class GivenRanges:
    """Computes one range at a time under one view."""

    def __init__(self, io: NodeIo) -> None:
        assert io.job.helping is not None
        self._job, self._send, self._ask = io.job, io.send, io.ask
        self._checks = io.job.helping.checks
        self._view: View | None = None
        self._numbers = 0
        self._known: tuple[int, dict[int, tuple[Array, ...]]] | None = None  # a clock's whole parameters
        self.now: GivenRange | None = None

    def adopt(self, view: View) -> None:
        """Drop the range, and work under a new view."""
        self.drop()
        self._view, self._known = view, None

    def drop(self) -> None:
        """Drop the range, which is not wanted any more."""
        if self.now is not None:
            self.now.cursor.abort()
            self.now = None

    def over(self, clock: int) -> None:
        """Drop the parameters of this clock and those before: nothing of them is left to compute."""
        if self._known is not None and self._known[0] <= clock:
            self._known = None

    def begin(self, task: Task, bundles: tuple[Units, ...]) -> None:
        """Compute these bundles: the units of the task's range."""
        assert self._view is not None and self.now is None
        count = sum(bundle.bit_count() for bundle in bundles)
        self._numbers += 1
        begin = Begin(self._view.timeline, task.bundle.clock, bundles, is_help=True)
        cursor = Cursor(count, max(1, count // self._checks))
        self.now = found = GivenRange(task, self._numbers, begin, cursor)
        if (whole := self._job.layout.whole_reads) is None:
            self._ask(begin)
            return
        found.rows = whole
        if self._known is not None and self._known[0] == begin.clock:
            found.parts = dict(self._known[1])
            self._compute(found)
        else:
            self.pull()

    def begun(self, event: Begun) -> None:
        """Pull the rows that a range reads, which are known now."""
        if self.now is not None and self.now.begin == event.begin:
            self.now.rows = event.rows
            self.pull()

    def pull(self) -> None:
        """Pull the partitions that are not here yet, or pull them again."""
        found = self.now
        if found is None or found.rows is None:
            return
        assert self._view is not None
        for partition, rows in enumerate(found.rows):
            if partition not in found.parts:
                pull = HelpPull(self._view.epoch, partition, found.begin.clock, rows, found.number)
                self._send(self._view.owner[partition], pull)

    def params(self, message: HelpParams) -> None:
        """Take the blocks of one partition. Computing starts when the last partition is here."""
        found = self.now
        if found is None or message.task != found.number or message.partition in found.parts:
            return
        found.parts[message.partition] = message.blocks
        if len(found.parts) == self._job.layout.partitions:
            if self._job.layout.whole_reads is not None:
                self._known = found.begin.clock, found.parts
            self._compute(found)

    def _compute(self, found: GivenRange) -> None:
        begin, parts = found.begin, tuple(found.parts[p] for p in range(self._job.layout.partitions))
        self._ask(Compute(begin.timeline, begin.clock, begin.bundles, parts, found.cursor, is_help=True))

    def has(self, event: Computed) -> bool:
        """True for a bundle of the range that is under way, unless it was computed before a rollback."""
        if self.now is None or event.bundle not in self.now.begin.bundles:
            return False
        begin = self.now.begin
        return (event.timeline, event.clock) == (begin.timeline, begin.clock)

    def computed(self, event: Computed) -> GivenRange | None:
        """Take a bundle's contributions; the range, once it has them all."""
        found = self.now
        assert found is not None
        found.found.setdefault(event.bundle, {}).update(event.contributions)
        found.compute_s[event.bundle] = event.compute_s
        if len(found.found) < len(found.begin.bundles):
            return None
        if min(map(len, found.found.values())) < self._job.layout.partitions:
            return None
        self.now = None
        return found
