"""Wall time that never jumps: read once, then advanced by a monotonic clock that counts through suspends.

Timeouts, repeats and the times in the log use it. With the wall clock, setting it back by an hour would stop every
retry of this process for an hour. After such a change, deadlines that come in wall time are off by it.
"""

from __future__ import annotations

import time


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_BOOTED_S = time.time() - _since_boot_s()


def wall_s() -> float:
    """Unix time: the wall clock at the start of this process plus the time since then."""
    return _BOOTED_S + _since_boot_s()
