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
SETTLE_S = 120.0  # of a process' life: imports, first buffers, all that a first cut and checkpoint bring
LEAST_SAMPLES = 4
LEAST_WATCHED_S = 600.0


@dataclass(frozen=True)
class Sample:
    at_s: float
    age_s: float
    bytes: int  # that it allocated: anonymous, resident
    descriptors: int


@dataclass(frozen=True)
class Growth:
    """A straight line through the samples of the processes of a kind, each about its own mean: per hour, with its
    standard error. `watched_s`: of all of them together; `mib` and `descriptors`: the most that one had at its end."""

    kind: str
    processes: int
    watched_s: float
    mib: float
    mib_per_h: float
    mib_error_per_h: float
    descriptors: int
    descriptors_per_h: float
    descriptors_error_per_h: float

    @property
    def is_known(self) -> bool:
        """False where too little was seen to tell growth from the start of a process."""
        return self.watched_s >= LEAST_WATCHED_S

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
                sample = Sample(at_s, time.time() - born_s, allocated(process.pid), process.num_fds())
                self._samples[kind, process.pid, born_s].append(sample)
        with contextlib.suppress(OSError):
            sizes = [file.stat().st_size for file in Path("/dev/shm").glob("*proteus*/*")]
            self.shared_bytes.append((at_s, sum(sizes)))

    def growth(self, since_s: float) -> list[Growth]:
        """By kind, of the processes that lived long enough, from `since_s` of the soak on."""
        by_kind: defaultdict[str, list[list[Sample]]] = defaultdict(list)
        for (kind, _, _), samples in self._samples.items():
            late = [each for each in samples if each.at_s >= since_s and each.age_s >= SETTLE_S]
            if len(late) >= LEAST_SAMPLES:
                by_kind[kind].append(late)
        found = []
        for kind, lives in sorted(by_kind.items()):
            mib, mib_error = slope([[(each.at_s, each.bytes / MIB) for each in life] for life in lives])
            rate, error = slope([[(each.at_s, float(each.descriptors)) for each in life] for life in lives])
            watched_s = sum(life[-1].at_s - life[0].at_s for life in lives)
            most_mib = max(life[-1].bytes for life in lives) / MIB
            descriptors = max(life[-1].descriptors for life in lives)
            found.append(
                Growth(kind, len(lives), watched_s, most_mib, mib, mib_error, descriptors, rate, error)
            )
        return found


def allocated(pid: int) -> int:
    """The anonymous memory of a process, in bytes: heap, stacks, what it mapped without a file. Raises OSError.

    Not its unique set: the pages of a library are unique to the last process that maps it, so whoever outlives the
    others seems to grow by all of torch.
    """
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise OSError(f"/proc/{pid}/status: found no RssAnon, the process has ended")


def slope(lives: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """(slope, its standard error) per hour of the least-squares line that all of `lives` share, each from a level of
    its own. Neighbouring samples hang together, so the error counts every fourth only."""
    xs, ys = [], []
    for life in lives:
        x, y = (np.array(column) for column in zip(*life, strict=True))
        xs.append((x - x.mean()) / 3600)
        ys.append(y - y.mean())
    x, y = np.concatenate(xs), np.concatenate(ys)
    spread = float((x * x).sum())
    if spread == 0.0:
        return 0.0, 0.0
    rate = float((x * y).sum()) / spread
    rest = y - rate * x
    free = max(1.0, len(x) / 4 - 1 - len(lives))
    return rate, float(np.sqrt((rest * rest).sum() / free / spread))


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
