"""The clocks that are known to be done, in order, and the usual duration of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agileml.core.protocol.messages import ClockReport
from agileml.events.run import ClockDone


class ProgressLog:
    """`heard` is the number of known clocks; None from a restart of the controller until the first report."""

    def __init__(self, heard: int | None) -> None:
        self.heard = heard
        self.clock_s: float | None = None  # a clock's usual duration: exponential average
        self._last_s: float | None = None

    def add(self, entries: Iterable[ClockReport]) -> Iterator[tuple[ClockDone, float]]:
        """Take up what partition 0's owner reports; each clock that is news, and when it was done.

        The owner repeats each entry until a controller has heard it. Entries that are missing before its first one were
        heard by another controller, so this one does not wait for them.
        """
        for entry in entries:
            if self.heard is not None and entry.clock < self.heard:
                continue
            follows = entry.clock == self.heard and self._last_s is not None
            seconds = max(0.0, entry.at_s - self._last_s) if follows and self._last_s is not None else None
            self.heard = entry.clock
            if seconds is not None:
                self.clock_s = seconds if self.clock_s is None else 0.8 * self.clock_s + 0.2 * seconds
            self._last_s = entry.at_s
            self.heard += 1
            mean = entry.loss / max(1, entry.examples)
            yield ClockDone(self.heard, mean, entry.examples, seconds), entry.at_s

    def none_left(self, version: int) -> None:
        """The owner has applied the clocks < `version` and has nothing to report: it told another controller the
        rest."""
        if self.heard is not None:
            self.heard = max(self.heard, version)

    def roll_back(self, known: int, base: int) -> int:
        """Training goes on from `base` although clocks < `known` were done; returns how many are computed again."""
        reached = max(known, self.heard or 0)
        if self.heard is not None:
            self.heard = min(self.heard, base)
        return max(0, reached - base)
