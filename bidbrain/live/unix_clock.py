"""Unix time as the clock of a market, which a change of the host's clock never sets back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

WAIT_S = 5.0
SET_BACK_S = 5.0  # less is a usual correction


class UnixClock:
    """The market's clock is Unix time as this host has it, but it never goes backwards.

    If the host's clock is set forward, this one follows. If it is set back, this one advances by the seconds that pass,
    and reports `trouble`; otherwise bills, budget and deadlines would stand still. wait_s: the longest wait.
    """

    def __init__(
        self,
        wall_s: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = time.monotonic,
        wait_s: float = WAIT_S,
    ) -> None:
        self.sleep: Callable[[float], object] = time.sleep
        self.wait_s = wait_s
        self._wall_s, self._steady_s = wall_s, steady_s
        self._offset_s = wall_s() - steady_s()
        self._told_s = 0.0
        self._lock = threading.Lock()  # the service and the run's own thread both ask

    def _read_s(self) -> tuple[float, float]:
        """(the time, how far the host's clock is behind it)."""
        with self._lock:
            steady_s = self._steady_s()
            found_s = self._wall_s() - steady_s
            self._offset_s = max(self._offset_s, found_s)
            return steady_s + self._offset_s, self._offset_s - found_s

    @property
    def trouble(self) -> str:
        """A sentence while the host's clock is behind, by more than its usual corrections."""
        behind_s = self._read_s()[1]
        if behind_s < SET_BACK_S:
            return ""
        if abs(behind_s - self._told_s) > SET_BACK_S:  # else the sentence would change with every correction
            self._told_s = behind_s
        return f"this host's clock was set back by {self._told_s:.0f} s: the market goes on by the time that passes"

    def now_s(self) -> int:
        """Unix time, whole seconds."""
        return int(self._read_s()[0])

    def wait(self, until_s: int, market: bool) -> None:
        """Wait until then, at most `wait_s`, so that the service soon sees notices and machines that have ended."""
        self.sleep(max(0.0, min(self.wait_s, until_s - self._read_s()[0])))
