"""Folders that belong to one process, and the processes that belong to a folder: nothing of a run stays.

A folder names its owner; when the owner is gone, `sweep` removes it, whatever the reason, with every process that has
files open in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

PREFIX = "proteus-"
OWNER = "owner"
_FOLDER = re.compile(rf"{tempfile.gettempdir()}/{PREFIX}\w+(?=/)")


def new_folder() -> Path:
    """A folder of mode 0700, with a name short enough for the socket paths below it (107 bytes), and a token in it."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    (folder / "ray").mkdir()
    _sign(folder)
    token = os.open(folder / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(token, secrets.token_hex(32).encode())
    finally:
        os.close(token)
    return folder


def _sign(folder: Path) -> None:
    """Write down that the folder is this process': what `sweep` goes by."""
    me = psutil.Process()
    (folder / OWNER).write_text(f"{me.pid} {me.create_time()}")


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """A folder `proteus-*` of mode 0700 that goes when this process leaves, or with `sweep` if it is killed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sign(folder)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep() -> list[Path]:
    """Remove what runs of killed processes left behind: their processes and folders; returns the folders."""
    removed = []
    places = {Path("/tmp"), Path(tempfile.gettempdir())}
    for folder in (folder for place in places for folder in place.glob(f"{PREFIX}*")):
        try:
            if folder.stat().st_uid != os.getuid():
                continue
            pid, created = (folder / OWNER).read_text().split()
            alive = psutil.pid_exists(int(pid)) and psutil.Process(int(pid)).create_time() == float(created)
        except (OSError, ValueError, psutil.NoSuchProcess):
            continue  # no folder of ours, or one that is just being made or removed
        if not alive:
            kill(processes_of(folder))
            remove(folder)
            removed.append(folder)
    return removed


def remove(folder: Path, patience_s: float = 2.0) -> None:
    """Delete the folder; what names its owner goes last, so that `sweep` knows an unfinished removal."""
    deadline_s = time.monotonic() + patience_s
    while (folder / "ray").exists() and time.monotonic() < deadline_s:
        shutil.rmtree(folder / "ray", ignore_errors=True)  # fails where a dying process still writes
    if not (folder / "ray").exists():
        shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if is_of(process, folder)]


def orphans() -> list[psutil.Process]:
    """Live processes of folders that are gone: there must be none. This one, which may have a log there, is none."""
    found = []
    for process in (other for other in psutil.process_iter() if other.pid != os.getpid()):
        with contextlib.suppress(psutil.Error, OSError):
            folders = {Path(match[0]) for name in _names(process) for match in _FOLDER.finditer(name)}
            if folders and not any(folder.exists() for folder in folders) and _lives(process):
                found.append(process)
    return found


def is_of(process: psutil.Process, folder: Path) -> bool:
    """Ray's own processes name the session's folder in their arguments; its workers and agents, which overwrite those,
    write their output there."""
    if process.pid == os.getpid():
        return False
    return any(f"{folder}/" in name for name in _names(process))


def _names(process: psutil.Process) -> list[str]:
    """Its arguments, and the files that it writes to (`path (deleted)` when there is no such file any more)."""
    found: list[str] = []
    with contextlib.suppress(psutil.Error, OSError):
        found += process.cmdline()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if descriptor.lstat().st_mode & stat.S_IWUSR:
                    found.append(os.readlink(descriptor))
    return found


def kill(processes: list[psutil.Process], patience_s: float = 10.0) -> None:
    """SIGKILL all of them; returns when they are dead (at most `patience_s`: one may hang in the kernel)."""
    for process in processes:  # frozen first: a raylet must not start another while we go through the list
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    deadline_s = time.monotonic() + patience_s
    while any(map(_lives, processes)) and time.monotonic() < deadline_s:
        time.sleep(0.005)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.wait(0)  # our own children leave no zombies


def _lives(process: psutil.Process) -> bool:
    """Dead is also a process that is only waiting for its parent to ask for its exit status."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
