"""Shared by the checkpoints' tests: cuts that can be told again from their names, writers in processes of their own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agileml.application import Array, Table
from agileml.checkpoints.checkpoint import (
    Check,
    CheckpointStore,
    Manifest,
    NotThereError,
    last_epoch,
    newest,
    prune,
    read_part,
    write_manifest,
    write_part,
)
from agileml.checkpoints.manifest import Identity
from agileml.checkpoints.store import Bytes
from agileml.config.job import from_values
from agileml.core.parameters.loss_scale import LossScale, ScaleChange
from agileml.core.protocol.messages import ClockReport, Cut
from agileml.core.protocol.view import CutId

WRITER = Path(__file__).with_name("writer.py")
TABLES = (Table("users", 60, 4, sparse=True), Table("bias", 1, 30, "float64"))
CONFIG: dict[str, Any] = {
    "application": "mf",
    "clocks": 100,
    "data": {"path": "/somewhere/ratings.csv", "format": "csv"},
    "model": {"rank": 8},
    "optimizer": {"kind": "momentum"},
}
IDENTITY = Identity.of(from_values(CONFIG), TABLES)


def cut_of(name: CutId, partition: int, elements: int = 1000) -> Cut:
    """The same for the same arguments, another for others."""
    rng = np.random.default_rng((name.clock, name.epoch, partition))
    blocks = (rng.random((elements // 4, 4)).astype(np.float32), rng.random(elements // 10))
    state = tuple(rng.random(block.shape).astype(block.dtype) for block in blocks)
    progress = ClockReport(
        name.clock - 1, 0.5 * partition, 10, 1.5, (), LossScale(8.0, 3, partition, ScaleChange.GREW)
    )
    return Cut(name.clock, blocks, (state,), ((name.clock, (3, 12)),), (progress,))


def same(one: Cut, other: Cut) -> bool:
    """Equal to the bit, in value, shape and dtype."""

    def plain(arrays: tuple[Array, ...]) -> list[Any]:
        return [(array.dtype, array.shape, array.tobytes()) for array in arrays]

    return (
        plain(one.blocks) == plain(other.blocks)
        and [plain(slot) for slot in one.state] == [plain(slot) for slot in other.state]
        and (one.clock, one.counted) == (other.clock, other.counted)
        and repr(one.progress) == repr(other.progress)  # NaN is NaN here
    )


def write(store: CheckpointStore, name: CutId, partitions: int = 2, elements: int = 1000) -> Manifest:
    """One whole checkpoint."""
    parts = [write_part(store, name, p, cut_of(name, p, elements)) for p in range(partitions)]
    manifest = Manifest(name, 1e9 + name.clock, IDENTITY, tuple(parts))
    write_manifest(store, manifest)
    return manifest


def write_on(store: CheckpointStore, keep: int, partitions: int, elements: int) -> Iterator[int]:
    """Go on where the newest checkpoint ends, for ever; yields the clocks of finished ones."""
    there = newest(store, lambda _: None, Check.CHECKSUMS)
    clock, epoch = there.name.clock if there else 0, last_epoch(store) + 1
    while True:
        clock += 1
        write(store, CutId(clock, epoch), partitions, elements)
        yield clock
        prune(store, keep)


def newest_read(store: CheckpointStore, elements: int = 1000) -> CutId | None:
    """The name of the newest whole checkpoint, every part of which is read and found to be what was written."""
    manifest = newest(store, lambda _: None, Check.CHECKSUMS)
    if manifest is None:
        return None
    for part in manifest.parts:
        expected = cut_of(manifest.name, part.partition, elements)
        assert same(read_part(store, manifest, part.partition), expected)
    return manifest.name


class MemoryStore:
    """Files in memory."""

    where = "memory"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def put(self, name: str, chunks: Iterable[Bytes], size: int) -> None:
        self.files[name] = b"".join(chunks)
        assert len(self.files[name]) == size

    def get(self, name: str) -> Iterator[Bytes]:
        if name not in self.files:
            raise NotThereError(f"{self.where}/{name} is not there")
        yield self.files[name]

    def list(self, prefix: str) -> dict[str, int]:
        return {name: len(content) for name, content in self.files.items() if name.startswith(prefix)}

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def sweep(self, prefix: str, is_stale: Callable[[str], bool]) -> None:
        """Nothing is ever left."""

    def probe(self) -> None:
        """It takes everything."""


class Writers:
    """Processes that write checkpoints for ever, forked from one that has done the imports."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, **job: Any) -> int:
        """Start a writer (see writer.py for the job); returns its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        word, number = self._line()
        assert word == "pid", word
        return int(number)

    def kill(self, pid: int) -> None:
        """SIGKILL; `ended` then tells the rest."""
        os.kill(pid, signal.SIGKILL)

    def finished(self) -> int:
        """Wait for the next finished checkpoint; its clock."""
        word, number = self._line()
        assert word == "done", (word, number)
        return int(number)

    def ended(self) -> tuple[int, int]:
        """Wait until the writer is gone: the last clock it finished (0: none), and its exit status."""
        last = 0
        while True:
            word, number = self._line()
            if word == "ended":
                return last, int(number)
            last = int(number)

    def _line(self) -> tuple[str, str]:
        assert self._process.stdout is not None
        word, number = self._process.stdout.readline().split()
        return word, number


@contextlib.contextmanager
def writers(**environment: str) -> Iterator[Writers]:
    """Run writer.py; no process is left at the end."""
    root = str(WRITER.parents[3])
    process = subprocess.Popen(
        [sys.executable, str(WRITER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **environment, "PYTHONPATH": root}, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        yield Writers(process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
