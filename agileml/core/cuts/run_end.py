"""Chooses the cut that ends a run: that of the last clock, or the next one after a request to stop."""

from __future__ import annotations

from agileml.core.protocol.view import CutId


class RunEnding:
    """The end of a run as one controller knows it. A controller that takes over is asked to stop again."""

    def __init__(self, clocks: int) -> None:
        self._clocks = clocks
        self._before: CutId | None = None  # the committed cut when the request came
        self._deadline_s: float | None = None

    @property
    def is_stopping(self) -> bool:
        """True once the run was asked to stop."""
        return self._before is not None

    def stop(self, committed: CutId, deadline_s: float | None) -> bool:
        """End with the first cut after `committed`, or at the earliest deadline. False for a repeat."""
        if deadline_s is not None:
            self._deadline_s = min(deadline_s, self._deadline_s or deadline_s)
        is_news = self._before is None
        if is_news:
            self._before = committed
        return is_news

    def is_last(self, committed: CutId, now_s: float) -> bool:
        """True when the run ends with this cut. A cut at clock 0 never ends it, because nothing was computed."""
        if committed.clock == self._clocks:
            return True
        if self._before is None or committed.clock == 0:
            return False
        return committed != self._before or self.is_late(now_s)

    def is_late(self, now_s: float) -> bool:
        """True once the deadline of a stop has passed."""
        return self._deadline_s is not None and now_s >= self._deadline_s
