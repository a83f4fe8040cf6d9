"""Folders that belong to one process, so that a run leaves nothing behind, however it ends.

A folder names its owner. When the owner is gone, `sweep` removes the folder and ends every process that has files open
in it.
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

from agileml.cluster.processes import PREFIX, is_alive, is_own, is_running, kill, open_paths, processes_of

OWNER = "owner"
BOOT = Path("/proc/sys/kernel/random/boot_id")
OWN_NAMES = {"ray", "token", "watchdog.log"}  # in such folders, beside the owner and sockets
# Clusters have their folders in /tmp, whatever TMPDIR is.
_PLACES = "|".join(map(re.escape, {"/tmp", tempfile.gettempdir()}))
_ANY = rf"(?:{_PLACES})/{PREFIX}\w+"
_DRIVER_LOG = re.compile(rf"{_ANY}/ray/.+/python-core-driver-\w+\.log")
_FOLDER = re.compile(rf"{_ANY}(?=/)")


def new_folder() -> Path:
    """Make a folder of mode 0700 that holds a token; its name leaves room for the socket paths below it (107 bytes)."""
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
    """Record this process as the owner of the folder, for `sweep`."""
    (folder / OWNER).write_text(f"{os.getpid()} {psutil.Process().create_time()} {_began(os.getpid())}")


def _began(pid: int) -> str:
    """When a process began, as the kernel counts since the boot: setting the host's clock moves Unix times by hours.

    Raises OSError: there is no such process.
    """
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return f"{fields[19]}/{BOOT.read_text().strip()}"


def owner_of(folder: Path) -> tuple[int, bool]:
    """The process that a folder names as its owner, and whether it runs. Raises OSError, ValueError: it names none."""
    pid, created, *began = (folder / OWNER).read_text().split()
    if not began:  # of an earlier version
        return int(pid), is_running(int(pid), float(created))
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return int(pid), _began(int(pid)) == began[0]
    return int(pid), False


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """A folder `proteus-*` of mode 0700: removed on exit, or by `sweep` if this process is killed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sign(folder)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_users(folder: Path) -> bool:
    """True for a folder of this user. A link to one is none: anybody may make such a link in /tmp. Raises OSError."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def holds_only_ours(folder: Path) -> bool:
    """True where a run may have made everything in a folder: people give folders of their own such names too.

    Raises OSError.
    """
    return all(each.name in OWN_NAMES or each.is_socket() for each in folder.iterdir())


def sweep() -> list[Path]:
    """End the processes and remove the folders that killed owners left behind; returns the folders."""
    removed = []
    places = {Path("/tmp"), Path(tempfile.gettempdir())}
    for folder in (folder for place in places for folder in place.glob(f"{PREFIX}*")):
        try:
            if not is_users(folder):
                continue
            _, alive = owner_of(folder)
        except (OSError, ValueError):
            continue  # not our folder, or another process is making or removing it
        if not alive:
            kill(processes_of(folder))
            remove(folder)
            removed.append(folder)
    return removed


def remove(folder: Path, timeout_s: float = 2.0) -> None:
    """Delete the folder; the file that names its owner goes last, so that `sweep` can finish the removal."""
    deadline_s = time.monotonic() + timeout_s
    while (folder / "ray").exists() and time.monotonic() < deadline_s:
        shutil.rmtree(folder / "ray", ignore_errors=True)  # fails where a dying process still writes
    if not (folder / "ray").exists():
        shutil.rmtree(folder, ignore_errors=True)


def orphans() -> list[psutil.Process]:
    """Live processes of removed folders, without this one: after every run there must be none.

    A program that goes on after its run is none either, though Ray leaves the logs of its driver open.
    """
    found = []
    for process in (other for other in psutil.process_iter() if other.pid != os.getpid()):
        with contextlib.suppress(psutil.Error, OSError):
            paths = open_paths(process)
            folders = {Path(match[0]) for name in paths for match in _FOLDER.finditer(name)}
            is_driver = any(_DRIVER_LOG.search(name) for name in paths)
            is_lost = bool(folders) and not any(map(Path.exists, folders)) and not is_driver
            if is_lost and is_own(process) and is_alive(process):
                found.append(process)
    return found
