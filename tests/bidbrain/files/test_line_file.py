"""A file of lines holds whole lines only, whatever the disk does."""

from __future__ import annotations

import errno
import fcntl
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.files.line_file import LineFile
from bidbrain.live.journal import Closing, Draining, Journal, Opened, Worked, read_journal

FULL = OSError(errno.ENOSPC, "No space left on device")
LINES = (Opened("job", "x", 1), Worked(2, 1.0), Draining(3, 4, "told to stop", 0), Closing(4, False, "x", 0))


class Disk:
    """The system's calls on a file, of which one fails. It writes few bytes at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: str, at: int, bytes_at_once: int = 20) -> None:
        self._left, self._at_once = at, bytes_at_once
        self._write, self._fsync = os.write, os.fsync
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(os, "fsync", self.fsync)
        self._fails = fails

    def _count(self, call: str) -> None:
        if call == self._fails:
            self._left -= 1
            if self._left == -1:
                raise FULL

    def write(self, file: int, data: bytes) -> int:
        self._count("write")
        return self._write(file, bytes(data)[: self._at_once])

    def fsync(self, file: int) -> None:
        self._count("fsync")
        self._fsync(file)


@pytest.mark.parametrize("fails", ["write", "fsync"])
@pytest.mark.parametrize("at", range(16))
def test_a_journal_is_whole_after_an_error_and_what_comes_later_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str, at: int
) -> None:
    kept = []
    with Journal(tmp_path) as journal:
        Disk(monkeypatch, fails, at)
        for record in LINES:
            try:
                journal.append(record)
            except OSError:
                continue
            kept.append(record)
    monkeypatch.undo()
    assert len(kept) >= len(LINES) - 1
    assert list(read_journal(tmp_path / "journal.jsonl")) == kept
    with Journal(tmp_path) as again:
        assert list(again.records) == kept
        again.append(Worked(9, 2.0))
    assert list(read_journal(tmp_path / "journal.jsonl")) == [*kept, Worked(9, 2.0)]


def test_the_text_of_a_journal_is_not_held_beside_its_records(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for at_s in range(300):
            journal.append(Worked(at_s, 2.0))
    tracemalloc.start()
    with Journal(tmp_path) as again:
        assert len(again.records) == 300
        held = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/pathlib.py")])
    tracemalloc.stop()
    assert sum(trace.size for trace in held.traces) < (tmp_path / "journal.jsonl").stat().st_size


def test_what_could_not_be_taken_back_is_taken_back_before_the_next_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(file: int, length: int) -> None:
        raise FULL

    with LineFile(tmp_path / "lines") as lines:
        lines.append(b"one\n")
        with monkeypatch.context() as patched:
            Disk(patched, "write", 1, bytes_at_once=2)
            patched.setattr(os, "ftruncate", refuse)
            with pytest.raises(OSError, match="No space left"):
                lines.append(b"two\n")
            assert (tmp_path / "lines").read_bytes() == b"one\ntw"
        lines.append(b"three\n")
    assert (tmp_path / "lines").read_bytes() == b"one\nthree\n"


def test_the_folder_is_synced_once_after_the_file_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    synced: list[bool] = []
    real = os.fsync

    def fsync(file: int) -> None:
        synced.append(os.path.isdir(f"/proc/self/fd/{file}"))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(2):
        with LineFile(tmp_path / "lines") as lines:
            lines.append(b"one\n")
    assert synced == [True, False, False]


def test_a_file_system_that_cannot_sync_folders_takes_a_journal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = os.fsync

    def fsync(file: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    with Journal(tmp_path) as journal:
        journal.append(LINES[0])
    assert list(read_journal(tmp_path / "journal.jsonl")) == [LINES[0]]


def test_a_file_system_without_locks_takes_a_journal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As Lustre, where it is mounted without them: a job on a played market ended there with a traceback."""

    def flock(file: int, what: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    for record in LINES[:2]:
        with Journal(tmp_path) as journal:
            journal.append(record)
    assert tuple(read_journal(tmp_path / "journal.jsonl")) == LINES[:2]


@given(failing=st.sets(st.integers(0, 30)), sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8))
@settings(deadline=None)
def test_lines_are_all_there_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, failing: set[int], sizes: list[int]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "lines"
    kept, calls, real = [], 0, os.write

    def write(file: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls in failing:
            raise FULL
        return real(file, bytes(data)[:7])

    with pytest.MonkeyPatch.context() as patched, LineFile(path) as lines:
        patched.setattr(os, "write", write)
        for number, size in enumerate(sizes):
            line = b"%d" % number + b"x" * size + b"\n"
            try:
                lines.append(line)
            except OSError:
                continue
            kept.append(line)
    assert path.read_bytes() == b"".join(kept)
