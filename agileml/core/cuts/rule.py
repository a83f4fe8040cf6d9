"""When to take the next cut. One is open at a time, and it is committed when all its parts are at their backups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CutRule:
    """A cut about every `every_s` seconds, at least every `max_clocks` clocks.

    A cut in transit takes links and processors from the clocks. So slow cuts are farther apart: parts travel for at
    most the share `travelling` of the time, but cuts are never more than `most` times `every_s` apart. That adds little
    to the cost of a sudden failure: the best interval between cuts that cost c seconds, with a failure every M
    seconds, is sqrt(2 c M) (Young 1974), 12 s for c = 0.02 s and M = 1 h.
    """

    every_s: float = 1.0
    max_clocks: int = 64
    travelling: float = 0.03
    most: float = 8.0

    def interval(self, clock_s: float | None, travel_s: float = 0.0) -> int:
        """Clocks from one cut to the next, when a clock takes `clock_s` seconds (None: not known yet) and the parts of
        a cut travel for `travel_s` seconds."""
        if clock_s is None:
            return 1
        if clock_s <= 0:
            return self.max_clocks
        apart_s = min(max(self.every_s, travel_s / self.travelling), self.most * self.every_s)
        return max(1, min(self.max_clocks, math.ceil(apart_s / clock_s)))


class OpenCut:
    """The named cut of one epoch, and the parts of it that have arrived."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._stored: dict[int, int] = {}  # partition -> bytes
        self._extra = 1
        # When parts began to travel, as far as is known; None: they have not.
        self.left_s: float | None = None
        self.next: int | None = None

    def name(self, version: int, interval: int, last: int) -> None:
        """Choose the clock of the next cut: `interval` clocks after `version`, at most `last`."""
        self._extra = 1
        self._choose(version + interval, last)

    def missed(self, version: int, interval: int, last: int) -> None:
        """Name a later clock, each time farther ahead: a shard was past the named one."""
        self._extra *= 2
        self._choose(version + max(interval, self._extra), last)

    def _choose(self, clock: int, last: int) -> None:
        self._stored.clear()
        self.left_s = None
        self.next = min(last, clock)

    def reached(self, version: int, now_s: float) -> None:
        """Record that an owner has reached `version`. At the clock of the cut, its parts begin to travel."""
        if self.next is not None and version >= self.next and self.left_s is None:
            self.left_s = now_s

    def travel_s(self, now_s: float) -> float:
        """Seconds for which parts have been travelling, as far as is known."""
        return 0.0 if self.left_s is None else now_s - self.left_s

    def stored(self, partition: int, clock: int, size_bytes: int = 0) -> None:
        """Record that a part has arrived at its backup."""
        if clock == self.next:
            self._stored[partition] = size_bytes

    @property
    def part_bytes(self) -> Mapping[int, int]:
        """By partition, the bytes of the part that has arrived."""
        return dict(self._stored)

    def is_open_at(self, clock: int) -> bool:
        """True when the cut at `clock` is named and parts are missing; a whole cut is about to be committed."""
        return clock == self.next and not self.is_whole

    @property
    def is_whole(self) -> bool:
        """True when every part has arrived."""
        return self.next is not None and len(self._stored) == self._partitions
