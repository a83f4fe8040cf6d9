"""Wall time that never jumps: read once, then advanced by a monotonic clock that counts through suspends.

Timeouts, retries and the times in the log use it: if they used the wall clock, setting it back by an hour would stop
all retries for an hour. Deadlines that other programs give in wall time are off by such a change.
"""

from __future__ import annotations

import time


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Unix time: the wall clock when this was made plus the time since then."""

    def __init__(self) -> None:
        self._booted_s = time.time() - _since_boot_s()

    def wall_s(self) -> float:
        """The present time."""
        return self._booted_s + _since_boot_s()


_PROCESS = SteadyClock()


def wall_s() -> float:
    """Unix time: the wall clock at the start of this process plus the time since then."""
    return _PROCESS.wall_s()
