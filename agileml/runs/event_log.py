"""events.jsonl of a run: one writer that appends whole lines, and a reader that gives the events back."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agileml.events.schema import Logged, RunEvent, SchemaError, check_header, from_line, header, to_line

EVENTS = "events.jsonl"


class EventLog:
    """Appends events as lines of JSON.

    Every line is one write and goes out at once. On a full disk the run goes on: a line that does not fit is
    left out whole and counted in `lost`. Safe to use from several threads.
    """

    def __init__(self, path: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Raises FileExistsError: a log is there already. OSError: it cannot be written."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)
        self._clock_s, self._start_s = clock_s, clock_s()
        self._lock = threading.Lock()
        self.path, self.lost = path, 0
        self._append(header())

    @property
    def now_s(self) -> float:
        """Seconds since the log was opened."""
        return self._clock_s() - self._start_s

    def write(self, event: RunEvent, *, t_s: float | None = None) -> None:
        """Log an event that happens now, or happened `t_s` seconds after the log was opened."""
        with self._lock:
            self._append(to_line(Logged(self.now_s if t_s is None else t_s, event)))

    def _append(self, text: str) -> None:
        line = text.encode() + b"\n"
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


def read_events(path: Path) -> list[Logged[RunEvent]]:
    """The events of a log in the order of their time; the half line of a run that was killed is left out.

    Raises SchemaError, which names the file and the line: a log of another version, or a line that is no event.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            if number == 1:
                check_header(line)
            else:
                found.append(from_line(line))
        except SchemaError as error:
            raise SchemaError(f"{path}, line {number}: {error}") from None
    return sorted(found, key=lambda each: each.t_s)
