"""Memory, descriptors and shared memory of the processes of a run over time, and whether they grow."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

MIB = 1 << 20
SETTLE_S = 60.0  # of a process' life: imports, first buffers
LEAST_SAMPLES = 8


@dataclass(frozen=True)
class Sample:
    at_s: float
    age_s: float
    bytes: int  # of its own: what is freed when it ends
    descriptors: int


@dataclass(frozen=True)
class Growth:
    """A straight line through the samples of one process: per hour, with its standard error."""

    kind: str
    lived_s: float
    mib: float  # its last sample
    mib_per_h: float
    mib_error_per_h: float
    descriptors: int
    descriptors_per_h: float
    descriptors_error_per_h: float

    def is_flat(self, most_mib_per_h: float, most_descriptors_per_h: float) -> bool:
        """True when growth beyond these rates is not certain: three standard errors."""
        return (
            self.mib_per_h - 3 * self.mib_error_per_h <= most_mib_per_h
            and self.descriptors_per_h - 3 * self.descriptors_error_per_h <= most_descriptors_per_h
        )


class Watch:
    """Looks at the tree of a process when it is told to."""

    def __init__(self, root: int) -> None:
        self._root = psutil.Process(root)
        self._began_s = time.monotonic()
        self._samples: defaultdict[tuple[str, int, float], list[Sample]] = defaultdict(list)
        self.shared_bytes: list[tuple[float, int]] = []

    def look(self) -> None:
        """Take a sample of every process."""
        at_s = time.monotonic() - self._began_s
        for process in [self._root, *self._root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error, OSError):
                kind = kind_of(process, self._root)
                born_s = process.create_time()
                sample = Sample(at_s, time.time() - born_s, process.memory_full_info().uss, process.num_fds())
                self._samples[kind, process.pid, born_s].append(sample)
        with contextlib.suppress(OSError):
            sizes = [file.stat().st_size for file in Path("/dev/shm").glob("*proteus*/*")]
            self.shared_bytes.append((at_s, sum(sizes)))

    def growth(self, since_s: float) -> list[Growth]:
        """Of the processes that lived long enough, from `since_s` of the soak on; the fastest growing first."""
        found = []
        for (kind, _, _), samples in self._samples.items():
            late = [each for each in samples if each.at_s >= since_s and each.age_s >= SETTLE_S]
            if len(late) < LEAST_SAMPLES:
                continue
            mib, mib_error = slope([(each.at_s, each.bytes / MIB) for each in late])
            fds, fds_error = slope([(each.at_s, float(each.descriptors)) for each in late])
            lived_s, last = late[-1].age_s, late[-1]
            found.append(
                Growth(kind, lived_s, last.bytes / MIB, mib, mib_error, last.descriptors, fds, fds_error)
            )
        return sorted(found, key=lambda growth: (growth.kind, -growth.lived_s))


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(slope, its standard error) of the least-squares line, per hour. Neighbouring samples hang together, so the error
    counts every fourth only."""
    x, y = (np.array(column) for column in zip(*points, strict=True))
    x = (x - x.mean()) / 3600
    spread = float((x * x).sum())
    if spread == 0.0:
        return 0.0, 0.0
    rate = float((x * (y - y.mean())).sum()) / spread
    rest = y - y.mean() - rate * x
    free = max(1.0, len(points) / 4 - 2)
    return rate, float(np.sqrt((rest * rest).mean() * len(points) / 4 / free / (spread / 4)))


def kind_of(process: psutil.Process, root: psutil.Process) -> str:
    """What a process of a supervised run is."""
    if process.pid == root.pid:
        return "supervisor"
    words = process.cmdline()
    first = words[0] if words else process.name()
    if "--supervised" in words:
        return "driver"
    for mark, kind in NAMES.items():
        if mark in first or any(mark in word for word in words[:3]):
            return kind
    return "ray: other"


NAMES: Mapping[str, str] = {
    "MachineActor": "machine",
    "HeadActor": "controller",
    "gcs_server": "ray: gcs",
    "raylet": "ray: raylet",
    "IDLE": "ray: idle worker",
    "dashboard": "ray: agent",
    "runtime_env": "ray: agent",
    "monitor": "ray: monitor",
}
