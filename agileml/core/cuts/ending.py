"""With which cut a run ends: that of its last clock, or, when it was told to stop, the next one."""

from __future__ import annotations

from agileml.core.protocol.view import CutId


class Ending:
    """What a controller knows of the end; one that takes over is told again."""

    def __init__(self, clocks: int) -> None:
        self._clocks = clocks
        self._before: CutId | None = None  # what was committed when the stop came
        self._deadline_s: float | None = None

    @property
    def is_stopping(self) -> bool:
        """True once the run was told to stop."""
        return self._before is not None

    def stop(self, committed: CutId, deadline_s: float | None) -> bool:
        """End with the first cut after `committed`; False when that was known. The earliest deadline counts."""
        if deadline_s is not None:
            self._deadline_s = min(deadline_s, self._deadline_s or deadline_s)
        is_news = self._before is None
        if is_news:
            self._before = committed
        return is_news

    def is_last(self, committed: CutId, now_s: float) -> bool:
        """True when the run ends with this cut. Clock 0 is no result: nothing was computed."""
        if committed.clock == self._clocks:
            return True
        if self._before is None or committed.clock == 0:
            return False
        is_late = self._deadline_s is not None and now_s >= self._deadline_s
        return committed != self._before or is_late
