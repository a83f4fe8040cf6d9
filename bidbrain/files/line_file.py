"""A file of lines that outlives its writer: each line is on disk before `append` returns, or not in the file at all.

A lock (flock) admits one writer at a time; the kernel drops it when the process ends. In a file of records a line is
one record as JSON, of a kind that a pydantic adapter reads.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from bidbrain.files.durable_names import flush_folder

R = TypeVar("R")


class LineFile:
    """A file of whole lines, open for adding more. A context manager.

    Raises BlockingIOError while another process has it open, and OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            _hold(self._file)
            self.lines = self._whole()
            self._length = len(self.lines)
            if is_new:
                flush_folder(path.parent)
        except OSError:
            self.close()
            raise

    def _whole(self) -> bytes:
        """The lines that were there when it was opened."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # the writer died inside a line, before acting on it
            os.ftruncate(self._file, whole)
            os.fsync(self._file)
        return data[:whole]

    def append(self, line: bytes) -> None:
        """Add a line, which brings its line end. Raises OSError; then the file is as it was.

        Whoever goes on after an error, as on a disk that is full for a while, adds whole lines to whole lines.
        """
        self._cut()  # of an append that failed, if it could not be done then
        data = memoryview(line)
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError:
            with suppress(OSError):
                self._cut()
            raise
        self._length += len(line)

    def _cut(self) -> None:
        """Take back what was written beyond the last whole line."""
        if os.fstat(self._file).st_size > self._length:
            os.ftruncate(self._file, self._length)
            os.fsync(self._file)

    def close(self) -> None:
        """Close it; the second time does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _hold(file: int) -> None:
    """Lock a file for as long as it is open. Raises BlockingIOError while another process has it; where a file system
    has no locks, as Lustre without its option, nobody can tell."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass


@dataclass(frozen=True)
class RecordFormat(Generic[R]):
    """The format of a file's lines. error: raised, with one sentence, for a file that cannot be used. line: a line, in
    words. busy: why another process has the file open, and what to do."""

    adapter: TypeAdapter[R]
    error: type[RuntimeError]
    line: str
    busy: str

    def parsed(self, data: bytes, path: Path) -> Iterator[R]:
        """The records of whole lines. Raises `error`, which names the file and the line."""
        for number, line in enumerate(data.splitlines(), 1):
            try:
                yield self.adapter.validate_json(line)
            except ValidationError as error:
                what = error.errors()[0]["msg"]
                raise self.error(f"{path} line {number}: not {self.line} ({what})") from None


class RecordFile(Generic[R]):
    """A locked file of records. A context manager. `records`: what was there when it was opened."""

    def __init__(self, path: Path, lines: RecordFormat[R]) -> None:
        """Raises the error of the format, OSError."""
        self.path, self._format = path, lines
        try:
            self._file = LineFile(path)
        except BlockingIOError:
            raise lines.error(f"{path}: {lines.busy}") from None
        try:
            self.records = tuple(lines.parsed(self._file.lines, path))
            self._file.lines = b""  # of a job of weeks tens of MB
        except lines.error:
            self.close()
            raise

    def append(self, record: R) -> None:
        """Add a record; it is on disk when this returns."""
        self._file.append(self._format.adapter.dump_json(record) + b"\n")

    def close(self) -> None:
        """Let the file go; the second time does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
