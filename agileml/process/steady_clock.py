"""Wall time that never jumps: read once, then advanced by a monotonic clock that counts through suspends.

Timeouts, repeats and the times in the log use it. If somebody set the wall clock back by an hour, every repeat of this
process would otherwise stop for an hour. Deadlines that others give in wall time are then off by that change.
"""

from __future__ import annotations

import time


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_BOOTED_S = time.time() - _since_boot_s()


def wall_s() -> float:
    """Unix time: the wall clock at the start of this process plus the time since then."""
    return _BOOTED_S + _since_boot_s()
