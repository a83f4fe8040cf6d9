"""Reads from the kernel how long the threads that compute ran, and waited for a core."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from agileml.config.text import ConfigError
from agileml.core.compute.speed_forecast import CoreReading

OWN = Path("/proc/self/schedstat")
MEMORY_S = 1.0  # between two looks at the memory


class CoreTime:
    """Takes readings for a `SpeedForecast`.

    `files`: the `schedstat` of each thread that computes: nanoseconds on a core, nanoseconds runnable without one. A
    thread whose file is gone has ended and counts no more. Raises ConfigError where the kernel does not count.
    """

    def __init__(self, files: Callable[[], Iterable[Path]], own: Path = OWN) -> None:
        if not own.exists():
            raise ConfigError(
                f"found narx, expected ema: this kernel has no {own}, which says what share of a core a worker gets",
                key=("balance", "predictor"),
            )
        self._files = files
        self._memory, self._memory_due_s = 1.0, 0.0

    def read(self) -> CoreReading:
        """A reading of now, in the time of `time.monotonic`."""
        now_s = time.monotonic()
        if now_s >= self._memory_due_s:
            memory = psutil.virtual_memory()
            self._memory, self._memory_due_s = memory.available / memory.total, now_s + MEMORY_S
        run_ns = wait_ns = 0
        for file in self._files():
            try:
                ran, waited, _ = file.read_text(encoding="ascii").split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            run_ns += int(ran)
            wait_ns += int(waited)
        return CoreReading(now_s, run_ns / 1e9, wait_ns / 1e9, self._memory)
