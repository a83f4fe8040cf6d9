"""A file of lines that outlives its writer: each line is on disk before `append` returns, and a half line is removed.

A lock (flock) admits one writer at a time; the kernel drops it when the process ends.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self


class LineFile:
    """A file of whole lines, open for adding more. A context manager.

    Raises BlockingIOError while another process has it open, and OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.lines = self._whole()
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
        """Add a line, which brings its line end."""
        data = memoryview(line)
        while data:
            data = data[os.write(self._file, data) :]
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
