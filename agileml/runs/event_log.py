"""events.jsonl of a run: one writer that appends whole lines, and readers that give the events back.

A log that has grown to `SEGMENT_BYTES` becomes events-000001.jsonl.gz, and a new events.jsonl begins.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO

from agileml.events.run import RunFailed, RunFinished, StepsLogged, Warned, WorkersSpent
from agileml.events.schema import Logged, RunEvent, SchemaError, check_header, from_line, header, to_line
from agileml.runs.thinning import Thinning
from bidbrain.files.durable_names import flush_folder

EVENTS = "events.jsonl"
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
SEGMENT_BYTES = 32 << 20
_SEGMENT = re.compile(r"-(\d{6})\.jsonl(\.gz)?$")
HOLD_TRIES, HOLD_PAUSE_S = 50, 0.01
BLOCK_BYTES = 1 << 18  # that a reader takes from the end at once


def since_boot_s() -> float:
    """The clock of a log. It never jumps, and goes on while the computer is suspended, as the time of the controller's
    events does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class EventLog:
    """Appends events as lines of JSON.

    Every line is one write and goes out at once, but for those that `Thinning` holds back. On a full disk, or a file
    system that is away or has become read-only, the run goes on: a line that cannot be written is left out whole and
    counted in `lost`, which the log tells at its end. Safe to use from several threads.
    """

    def __init__(
        self,
        path: Path,
        clock_s: Callable[[], float] = since_boot_s,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        continue_at_s: float | None = None,
    ) -> None:
        """continue_at_s: append to the log of an earlier process, which was opened so many seconds ago.

        Raises FileExistsError: a log is there already. OSError: it cannot be written.
        """
        self._clock_s, self._segment_bytes = clock_s, segment_bytes
        self._start_s = clock_s() - (continue_at_s or 0.0)
        self._lock = threading.Lock()
        self._thinning = Thinning()
        self._packing: threading.Thread | None = None
        self.path, self.lost = path, 0
        self._whole: int | None = None  # the bytes of whole lines, while half a line may stand behind them
        self._segments = newest_segment(path)
        if continue_at_s is None:
            self._file = _begun(path)
        else:
            if not path.exists():  # a process that was killed had begun it, and not yet named it
                os.rename(_next(path), path)
            cut_half_line(path)
            self._file = os.open(path, FLAGS & ~(os.O_EXCL | os.O_CREAT))
            _hold(self._file)
            if not os.fstat(self._file).st_size:  # a power failure took the line that it had begun with
                os.write(self._file, header().encode() + b"\n")
        self.on_event: Callable[[RunEvent], None] = lambda event: None  # called with each event as it comes
        # Called when a line is left out for the first time.
        self.on_line_lost: Callable[[str], None] = lambda sentence: None

    @property
    def now_s(self) -> float:
        """Seconds since the log was opened."""
        return self._clock_s() - self._start_s

    def write(self, event: RunEvent, *, t_s: float | None = None) -> None:
        """Log an event that happens now, or happened `t_s` seconds after the log was opened."""
        with self._lock:
            now_s = self.now_s if t_s is None else t_s
            lines = self._thinning.take(now_s, event)
            if self.lost and isinstance(event, RunFailed | RunFinished):
                missing = f"{self.lost} lines of {self.path.name} did not fit on the disk, so its figures are too low"
                lines.insert(0, Logged(now_s, Warned(missing)))
            for line in lines:
                self._append(to_line(line))
            self._may_rotate()
        self.on_event(event)

    def _append(self, text: str) -> None:
        line = text.encode() + b"\n"
        try:
            self._cut_back()
            self._whole = os.fstat(self._file).st_size
            if os.write(self._file, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._whole = None
        except OSError as error:
            with suppress(OSError):  # then before the next line, which must not stand behind half of this one
                self._cut_back()
            if not self.lost:
                self.on_line_lost(
                    f"{self.path}: lines do not fit and are left out ({error.strerror}); the run goes on"
                )
            self.lost += 1

    def _cut_back(self) -> None:
        """Remove half a line. Raises OSError."""
        if self._whole is not None:
            os.ftruncate(self._file, self._whole)
            self._whole = None

    def _may_rotate(self) -> None:
        new = _next(self.path)
        try:
            if os.fstat(self._file).st_size < self._segment_bytes:
                return
            new.unlink(missing_ok=True)  # left by a process that was killed here
            file = _begun(new)
        except OSError:
            return  # a full disk, or none: the present file grows on
        self._segments += 1
        old = self.path.with_name(f"{self.path.stem}-{self._segments:06}{self.path.suffix}")
        os.rename(self.path, old)
        os.rename(new, self.path)
        os.close(self._file)
        self._file = file
        if self._packing is not None:
            self._packing.join()
        self._packing = threading.Thread(target=pack, args=(old,), name="log-packing")
        self._packing.start()

    def close(self) -> None:
        """Write what was held back and close the file; the second time does nothing."""
        with self._lock:
            if self._file >= 0:
                for line in self._thinning.rest():
                    self._append(to_line(line))
                os.close(self._file)
                if self._packing is not None:
                    self._packing.join()
            self._file = -1


def _next(path: Path) -> Path:
    """The name of a log's next file while the present one is renamed."""
    return path.with_name(f".{path.name}.tmp")


def _begun(path: Path) -> int:
    """A new file of a log with its header. Raises FileExistsError, OSError: then there is no file."""
    file, line = os.open(path, FLAGS, 0o644), header().encode() + b"\n"
    try:
        if os.write(file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        os.close(file)
        path.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None
    _hold(file)
    return file


def _hold(file: int) -> None:
    """Lock a file of a log for as long as it is open, so that others see that its run goes on (`is_written`)."""
    for _ in range(HOLD_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody looks just now
            time.sleep(HOLD_PAUSE_S)
        except OSError:
            return  # a file system without locks
        else:
            return


def is_written(path: Path, *, if_unknown: bool = True) -> bool:
    """True while some process has a log open to write to it; `if_unknown` where its file system cannot tell."""
    for file in (path, _next(path), path):  # a new file may just take the place of the old one
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return if_unknown
        finally:
            os.close(descriptor)
    return False


def cut_half_line(path: Path) -> None:
    """Remove what a writer that was killed left behind the last whole line."""
    with path.open("r+b") as file:
        keep = end = file.seek(0, os.SEEK_END)
        while keep > 0:
            start = max(0, keep - BLOCK_BYTES)
            file.seek(start)
            at = file.read(keep - start).rfind(b"\n")
            if at >= 0:
                keep = start + at + 1
                break
            keep = start
        if keep < end:
            file.truncate(keep)


def pack(segment: Path) -> None:
    """Compress a segment. A reader finds it under one name or the other at any time, also after a power failure; a full
    disk leaves it as it is."""
    packed, temporary = segment.with_name(f"{segment.name}.gz"), segment.with_name(f".{segment.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(gzip.compress(segment.read_bytes(), 6))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, packed)
        flush_folder(packed.parent)
        segment.unlink()
    except OSError:
        temporary.unlink(missing_ok=True)


def _segments(path: Path) -> list[Path]:
    """The older files of a log, the oldest first; of one that is being packed the whole file."""
    found = {file.name.removesuffix(".gz"): file for file in _packed_or_not(path)}
    return [found[name] for name in sorted(found)]


def _packed_or_not(path: Path) -> list[Path]:
    files = sorted(path.parent.glob(f"{path.stem}-*.jsonl*"))
    return [file for file in files if _SEGMENT.search(file.name)]


def _number(segment: Path) -> int:
    found = _SEGMENT.search(segment.name)
    assert found is not None, segment
    return int(found[1])


def files_of(path: Path) -> list[Path]:
    """All files of a log in the order of time; the last one grows."""
    return [*_segments(path), path]


def names_of(path: Path) -> list[str]:
    """The names of all files of a log, of one that a killed process was packing both."""
    return [*(file.name for file in _packed_or_not(path)), _next(path).name, path.name]


def newest_segment(path: Path) -> int:
    """The number of the newest file of a log that does not grow any more; 0 without one."""
    return max(map(_number, _segments(path)), default=0)


def iterate_events(
    path: Path, *, older: bool = False, numbers: range | None = None
) -> Iterator[Logged[RunEvent]]:
    """The events of a log in the order of the file, one at a time; the half line of a run that was killed is left out.

    older: only those of the files that do not grow any more; numbers: of these alone.
    Raises SchemaError, which names the file and the line: a log of another version, a line that is no event, or a file
    that is damaged.
    """
    files = _segments(path) if older else files_of(path)
    if numbers is not None:
        files = [file for file in files if _number(file) in numbers]
    for file in map(_present, files):
        with _readable(file), _opened(file) as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith("\n"):
                    break
                if (logged := parsed(file, number, line)) is not None:
                    yield logged


def _present(file: Path) -> Path:
    """The file of a log, or the one into which it was packed meanwhile, or that is about to take its place."""
    others = (file.with_name(f"{file.name}.gz"), _next(file))
    return file if file.exists() else next((other for other in others if other.exists()), file)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Raises SchemaError where the file is no text, or cannot be unpacked."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise SchemaError(f"{file} is damaged ({error})") from None


def _opened(file: Path) -> IO[str]:
    return gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8")


def parsed(file: Path, number: int, line: str) -> Logged[RunEvent] | None:
    """The event of a line; None for the header. Raises SchemaError."""
    try:
        if number == 1:
            check_header(line)
            return None
        return from_line(line)
    except SchemaError as error:
        raise SchemaError(f"{file}, line {number}: {error}") from None


def read_events(path: Path, *, steps: bool = False) -> list[Logged[RunEvent]]:
    """The events of a log in the order of their time. Totals by machine come once, the newest of each machine.

    steps: also those of supersteps, one for each minibatch, which only a replay needs and a long run has too many of
    to hold. Raises SchemaError as `iterate_events` does.
    """
    found = []
    spent: Logged[WorkersSpent] | None = None
    for each in iterate_events(path):
        if isinstance(each.event, StepsLogged) and not steps:
            continue
        if isinstance(each.event, WorkersSpent):  # they are long, and each one holds the ones before
            before = {} if spent is None else spent.event.by_machine
            spent = Logged(each.t_s, WorkersSpent({**before, **each.event.by_machine}))
        else:
            found.append(each)
    if spent is not None:
        found.append(spent)
    return sorted(found, key=lambda each: each.t_s)


def read_first(path: Path, most: int) -> list[Logged[RunEvent]]:
    """The first events of a log, at most so many. Raises SchemaError."""
    return list(islice(iterate_events(path), most))


def read_backwards(path: Path) -> Iterator[Logged[RunEvent]]:
    """The events of a log from the end, whose files are read in blocks. Raises SchemaError."""
    for file in map(_present, reversed(files_of(path))):
        with _readable(file):
            for line in _lines_backwards(file):
                if '"log"' not in line[:8]:
                    try:
                        yield from_line(line)
                    except SchemaError as error:
                        raise SchemaError(f"{file}: {error}") from None


def _lines_backwards(file: Path) -> Iterator[str]:
    if file.suffix == ".gz":
        with _opened(file) as lines:
            yield from reversed(lines.readlines())
        return
    with file.open("rb") as stream:
        at, tail = stream.seek(0, os.SEEK_END), b""
        is_last = True
        while at > 0:
            step = min(BLOCK_BYTES, at)
            at = stream.seek(at - step)
            first, *whole = (stream.read(step) + tail).split(b"\n")
            if is_last:
                # After the last line end stands half a line, or nothing.
                whole, is_last = whole[:-1], not whole
            for line in reversed(whole):
                yield line.decode()
            tail = first
        if not is_last:
            yield tail.decode()
