"""The folder of one run: config.yaml, events.jsonl, model.safetensors, summary.json, report.html.

A file is there whole or not at all: it is written under a temporary name, flushed to disk and renamed.
Only events.jsonl grows while the run goes on, by whole lines.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

CONFIG, EVENTS, MODEL = "config.yaml", "events.jsonl", "model.safetensors"
SUMMARY, REPORT = "summary.json", "report.html"
FILES = (CONFIG, EVENTS, MODEL, SUMMARY, REPORT)
MARKET = "market"  # a folder in that of the run: journal, ledger and prices of its market


class FolderError(ValueError):
    """The user named a folder that cannot take a run: one sentence."""


class StorageError(RuntimeError):
    """A result could not be written (a full disk, most often): one sentence; earlier files are whole."""


def check_out(out: str | Path | None) -> None:
    """Raise FolderError if a run could not be written to `out` (None: a new folder in runs/); makes nothing."""
    path = Path("runs") if out is None else Path(out)
    if out is not None and path.exists() and not path.is_dir():
        raise FolderError(f"out: {path} is a file, expected a folder or a new name")
    if out is not None and (held := [name for name in (*FILES, MARKET) if (path / name).exists()]):
        raise FolderError(
            f"out: {path} holds another run (found {held[0]}), expected a new or an empty folder"
        )
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise FolderError(f"out: {path} cannot be made, {there} is a file; expected a folder")
    try:
        with tempfile.TemporaryFile(
            dir=there
        ):  # permission bits do not tell of read-only disks, nor bind root
            pass
    except OSError as error:
        raise FolderError(
            f"out: {path} is not writable ({error.strerror}), expected a folder that is"
        ) from None


class RunFolder:
    """The folder of one run, made by `create`, with its log of events open."""

    def __init__(self, path: Path, events: EventLog) -> None:
        self.path, self.events = path, events

    @classmethod
    def create(cls, out: str | Path | None, name: str, *, runs: Path = Path("runs")) -> RunFolder:
        """Make `out`, or runs/<name>-<YYYYmmdd-HHMMSS> (-2, -3 ... if that is taken).

        Raises FolderError: not writable, a file, or the folder of another run.
        """
        if out is not None:
            check_out(out)
            path = Path(out)
        try:
            if out is None:
                path = _new_folder(runs, f"{name}-{datetime.now():%Y%m%d-%H%M%S}")
            else:
                path.mkdir(parents=True, exist_ok=True)
            return cls(path, EventLog(path / EVENTS))
        except FileExistsError:  # another run was faster
            raise FolderError(f"out: {path} holds another run, expected a new or an empty folder") from None
        except OSError as error:
            raise FolderError(f"out: {error.filename} cannot be written: {error.strerror}") from None

    def write_config(self, text: str) -> None:
        """The resolved config. Raises StorageError."""
        self.write_text(self.path / CONFIG, text)

    def write_model(self, tables: Mapping[str, np.ndarray]) -> str:
        """The parameters as safetensors; returns their `params_sha256`. Raises StorageError."""
        digest = params_sha256(tables)
        contiguous = {name: np.ascontiguousarray(table) for name, table in tables.items()}
        with _replacing(self.path / MODEL) as temporary:
            save_file(contiguous, temporary, metadata={"params_sha256": digest})
            temporary.chmod(self.events.path.stat().st_mode)  # safetensors lets nobody else read it
        return digest

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """summary.json. Raises StorageError."""
        self.write_text(self.path / SUMMARY, json.dumps(plain(summary), indent=2, allow_nan=False) + "\n")

    def write_report(self, html: str) -> None:
        """report.html. Raises StorageError."""
        self.write_text(self.path / REPORT, html)

    @staticmethod
    def write_text(path: Path, text: str) -> None:
        """Replace one file, whole or not at all. Raises StorageError."""
        with _replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _new_folder(runs: Path, name: str) -> Path:
    runs.mkdir(parents=True, exist_ok=True)
    attempt = 1
    while True:
        path = runs / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            path.mkdir()
            return path
        except FileExistsError:
            attempt += 1


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path; what is written there becomes `path` at once, or is removed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, SafetensorError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise StorageError(
            f"{path} could not be written: {why} ({_free(path.parent)}); what was written before is whole"
        ) from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _free(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free / 2**20:.1f} MiB free"
    except OSError as error:
        return f"free space unknown: {error.strerror}"


class EventLog:
    """Appends events as JSON lines, each with `t_s` (seconds since the log was opened) and `kind`.

    Every line is one write and goes out at once. On a full disk the run goes on: a line that does not fit is
    left out whole and counted in `lost`. Safe to use from several threads.
    """

    def __init__(self, path: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Raises FileExistsError: a log is there already."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)
        self._clock_s, self._start_s = clock_s, clock_s()
        self._lock = threading.Lock()
        self.path, self.lost = path, 0

    @property
    def now_s(self) -> float:
        """Seconds since the log was opened."""
        return self._clock_s() - self._start_s

    def write(self, kind: str, *, t_s: float | None = None, **fields: Any) -> None:
        """Log one event that happens now, or happened `t_s` seconds after the log was opened."""
        with self._lock:
            event = {"t_s": round(self.now_s if t_s is None else t_s, 6), "kind": kind, **plain(fields)}
            line = json.dumps(event, allow_nan=False, separators=(", ", ": ")).encode() + b"\n"
            size = os.fstat(self._file).st_size
            try:
                if os.write(self._file, line) < len(line):
                    raise OSError("only a part of the line fits")
            except OSError:
                self.lost += 1
                os.ftruncate(self._file, size)

    def close(self) -> None:
        """Close the file; the second time does nothing."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a log in the order of their time; the half line of a run that was killed is left out."""
    events = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            events.append(json.loads(line))
    return sorted(events, key=lambda event: event["t_s"])


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: numpy's scalars and arrays as Python's, what is not finite as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return [plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def params_sha256(tables: Mapping[str, np.ndarray]) -> str:
    """SHA-256, in hex, of the parameters.

    The bytes hashed are, for every table in the ascending order of their names (as UTF-8 bytes):
    the name as UTF-8, a zero byte, the dtype's name ("float32"), a zero byte, the shape in decimal with commas
    ("610,16"), a zero byte, and the values in C order, little-endian.
    """
    digest = hashlib.sha256()
    for name in sorted(tables, key=str.encode):
        table = np.asarray(tables[name])
        little = np.ascontiguousarray(table, dtype=table.dtype.newbyteorder("<"))
        shape = ",".join(str(length) for length in table.shape)
        digest.update(f"{name}\0{table.dtype.name}\0{shape}\0".encode())
        digest.update(little.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def model_sha256(path: Path) -> str:
    """`params_sha256` of the tables in a model.safetensors."""
    with safe_open(path, framework="numpy") as model:
        return params_sha256({name: model.get_tensor(name) for name in model.keys()})  # noqa: SIM118
