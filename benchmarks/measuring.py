"""What benchmarks share: the head of a table, ratios of what ran in turn, the least CPU time, a free port.

It imports neither torch nor numpy, so that a benchmark can set their environment after it.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Sequence


def versions(*names: str) -> str:
    """Packages, or `python`, as they are to be written, each with its version."""
    return ", ".join(
        f"{name} {platform.python_version() if name.lower() == 'python' else importlib.metadata.version(name)}"
        for name in names
    )


def cores() -> str:
    """The cores of this computer and its load."""
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def computer(*names: str) -> str:
    """The kind of this computer, its cores and load, and the versions of some packages, for the head of a table."""
    return ", ".join([platform.machine(), cores(), *([versions(*names)] if names else [])])


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios of two that ran in turn."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def least_cpu_s(times: int, run: Callable[..., object], *arguments: object) -> float:
    """CPU seconds of the quickest of some calls: what one idle core would take, whoever else is at work."""
    found = []
    for _ in range(times):
        begun_s = time.process_time()
        run(*arguments)
        found.append(time.process_time() - begun_s)
    return min(found)


def free_port() -> int:
    """A port of this computer that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
