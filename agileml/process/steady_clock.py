"""Wall time that does not jump: taken once, then carried on by a clock that only goes forward, through suspends too.

Timeouts, repeats and instants of the log go by it. A wall clock that somebody sets back by an hour would otherwise stop
every repeat of this process for an hour. A deadline that somebody else names in wall time is off by what it was set.
"""

from __future__ import annotations

import time


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_BOOTED_S = time.time() - _since_boot_s()


def wall_s() -> float:
    """Unix time, as it was when this process started plus what has passed since."""
    return _BOOTED_S + _since_boot_s()
