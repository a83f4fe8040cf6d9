"""When to take the next cut. One is open at a time; it is committed when every partition's part is at its backup."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class CutRule:
    """A cut about every `every_s` seconds, at least every `max_clocks` clocks."""

    every_s: float = 1.0
    max_clocks: int = 64

    def interval(self, clock_s: float | None) -> int:
        """Clocks from one cut to the next, when a clock takes `clock_s` seconds (None: not known yet)."""
        if clock_s is None:
            return 1
        if clock_s <= 0:
            return self.max_clocks
        return max(1, min(self.max_clocks, math.ceil(self.every_s / clock_s)))


class OpenCut:
    """The cut of one epoch that is named, and which parts of it have arrived."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._stored: set[int] = set()
        self._extra = 1
        self.next: int | None = None

    def name(self, version: int, interval: int, last: int) -> None:
        """Choose the next clock: `interval` clocks after what has been reached, at most `last`."""
        self._extra = 1
        self._choose(version + interval, last)

    def missed(self, version: int, interval: int, last: int) -> None:
        """A shard was past the named clock: name a later one, farther ahead each time."""
        self._extra *= 2
        self._choose(version + max(interval, self._extra), last)

    def _choose(self, clock: int, last: int) -> None:
        self._stored.clear()
        self.next = min(last, clock)

    def stored(self, partition: int, clock: int) -> None:
        """A part has arrived at its backup."""
        if clock == self.next:
            self._stored.add(partition)

    def is_open_at(self, clock: int) -> bool:
        """True when the named cut is that one and parts are missing: a whole one is on its way to be committed."""
        return clock == self.next and not self.is_whole

    @property
    def is_whole(self) -> bool:
        """True when every part has arrived."""
        return self.next is not None and len(self._stored) == self._partitions
