"""Files from far away, kept on this machine's disk: never more than a bound, and those go first that were used least
recently.

Many processes share a cache. Each file has a folder of its own with a lock: a process that downloads or removes the
file takes the lock exclusively; readers share it. The kernel releases the locks of a process that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agileml.application import InputError

GIB = 1 << 30
DEFAULT_GIB = 32.0
RESERVED = ".reserved"  # an empty file as large as the one that is being downloaded
ELSEWHERE = "XDG_CACHE_HOME names another place"
MOST_OF_DISK = 0.9  # of what is free and what the cache has: a full disk would end the run


def cache_folder() -> Path:
    """Where downloads are kept: `$XDG_CACHE_HOME/proteus/data`, or below ~/.cache. Raises InputError."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "proteus" / "data"
    except RuntimeError:  # HOME is not set, and the system does not know this user
        raise InputError(f"data.path: found no home folder for files from afar; {ELSEWHERE}") from None


@dataclass
class HeldFile:
    """A file of the cache, which stays until it is closed."""

    path: Path
    _lock: int = -1

    def close(self) -> None:
        """The cache may remove the file."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *raised: object) -> None:
        self.close()


class FileCache:
    """Files below `folder` by a key, at most `most_bytes` and 90% of what the disk has for them.

    Files that are read at the moment are not removed, also where that leaves more than the bound for a while.
    """

    def __init__(self, folder: Path | None = None, most_bytes: int = int(DEFAULT_GIB * GIB)) -> None:
        self._given, self._most_bytes = folder, most_bytes

    @property
    def _folder(self) -> Path:
        return self._given or cache_folder()

    def held(
        self, url: str, key: str, name: str, size: int, download: Callable[[Path], bool]
    ) -> HeldFile | None:
        """The file of this key, downloaded if it is not here; None if `download` finds that it is another now.

        url: its name in errors. name: of the local file. size: its bytes. download: writes the file to a path, and
        says whether it was the one that the key means.

        Raises InputError for a file that is too large for the cache, and where nothing can be kept, OSError.
        """
        entry = self._folder / key
        while True:
            lock = _lock_of(entry, fcntl.LOCK_SH)  # waits while another process downloads it
            if lock is None:
                continue  # removed in this moment
            file = entry / name
            if file.exists():
                os.utime(file, ns=(time.time_ns(), file.stat().st_mtime_ns))  # used now
                return HeldFile(file, lock)
            os.close(lock)
            with _alone(entry) as is_ours:
                is_there = not is_ours or file.exists() or self._download(url, file, size, download)
            if not is_there:
                return None

    def _download(self, url: str, file: Path, size: int, download: Callable[[Path], bool]) -> bool:
        """Whole or not at all."""
        part = file.with_name(f"{file.name}.part")
        reserved = file.with_name(RESERVED)
        try:
            self._make_room(url, reserved, size)
            if not download(part):
                return False
            part.replace(file)
            return True
        finally:
            part.unlink(missing_ok=True)
            reserved.unlink(missing_ok=True)

    def _make_room(self, url: str, reserved: Path, size: int) -> None:
        """Remove old files until this one fits, and make it count for others from now on."""
        with _alone(self._folder / ".room") as is_ours:
            assert is_ours, "no process removes it"
            for left in reserved.parent.glob("*.part"):  # by a process that died
                left.unlink()
            entries = [each for each in self._entries() if each.folder != reserved.parent]
            held = sum(each.bytes for each in entries)
            here = sum(each.here_bytes for each in entries)  # without what others have yet to download
            free = shutil.disk_usage(self._folder).free
            bound = min(self._most_bytes, int(MOST_OF_DISK * (free + here)))
            if size > bound:
                raise InputError(
                    f"data.path: {url} has {size / GIB:.2f} GiB, expected at most the {bound / GIB:.2f} GiB that "
                    f"{self._folder} may hold (data.cache_gib, and 90% of what the disk has for it)"
                )
            for oldest in sorted(entries, key=lambda each: each.used_ns):
                if held + size <= bound:
                    break
                if _removed(oldest.folder):
                    held -= oldest.bytes
            with reserved.open("wb") as made:
                made.truncate(size)  # takes no place on the disk

    def _entries(self) -> list[_Entry]:
        found = []
        for folder in self._folder.iterdir():
            with contextlib.suppress(OSError):  # removed meanwhile
                files = {path.name: path.stat() for path in folder.iterdir() if path.name != ".lock"}
                if files:
                    coming = files.pop(RESERVED, None)
                    here = sum(file.st_size for file in files.values())
                    size = max(here, coming.st_size) if coming else here
                    used = [file.st_atime_ns for file in (*files.values(), *([coming] if coming else []))]
                    found.append(_Entry(folder, size, here, max(used)))
        return found


@dataclass(frozen=True)
class _Entry:
    """bytes: with those that are still to come; here_bytes: without."""

    folder: Path
    bytes: int
    here_bytes: int
    used_ns: int


def _removed(folder: Path) -> bool:
    """Remove a file unless a process reads it."""
    with _alone(folder, fcntl.LOCK_NB) as is_ours:
        if is_ours:
            lock = folder / ".lock"
            for path in [each for each in folder.iterdir() if each != lock]:
                path.unlink()
            lock.unlink()  # last: a process that finds no lock, and makes one, finds no file either
            with contextlib.suppress(OSError):  # one has made a lock already, and uses the folder
                folder.rmdir()
        return is_ours


@contextmanager
def _alone(folder: Path, flag: int = 0) -> Iterator[bool]:
    """The folder for this process alone; False if it was removed before, or with LOCK_NB is in use."""
    lock = _lock_of(folder, fcntl.LOCK_EX | flag)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def _lock_of(folder: Path, kind: int) -> int | None:
    """Raises InputError where nothing can be kept: without locks two processes would write one file."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()  # with exist_ok it fails where another process removes the folder in this moment
    except OSError as error:
        raise _unfit(folder.parent, f"that can be written to ({error.strerror})") from None
    try:
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, kind)
        if (folder / ".lock").stat().st_ino == os.fstat(lock).st_ino:
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(lock)
        raise _unfit(folder.parent, f"on a file system with locks ({error.strerror})") from None
    os.close(lock)
    return None


def _unfit(folder: Path, expected: str) -> InputError:
    return InputError(f"data.path: files from afar go to {folder}, expected a folder {expected}; {ELSEWHERE}")
