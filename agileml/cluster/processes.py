"""Processes of this computer: those of a folder, those below another one, Ray's, and how to end them for good."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from agileml.cluster.errors import ClusterError
from agileml.events.run import CLOCK_STEP_S

PREFIX = "proteus-"  # of the folders of runs
GCS_FLAG = "--gcs-address="  # of a raylet


def is_running(pid: int, created_s: float) -> bool:
    """True while the process of that number and creation time (Unix time) runs, dead ones that wait for their parent
    included."""
    try:
        return abs(psutil.Process(pid).create_time() - created_s) < CLOCK_STEP_S
    except psutil.Error:
        return False


def processes_of(folder: Path) -> list[psutil.Process]:
    """Live processes of this user that use the folder. Another user's, such as `sudo tail` of a log in it, is no part
    of a run, and we may not end it."""
    return [each for each in psutil.process_iter() if is_own(each) and uses_folder(each, folder)]


def is_own(process: psutil.Process) -> bool:
    """True for a process of this user."""
    with contextlib.suppress(psutil.Error):
        return process.uids().real == os.getuid()
    return False


def uses_folder(process: psutil.Process, folder: Path) -> bool:
    """True for a process that names the folder in its arguments, as Ray's own processes do, or writes files in it.

    Ray's workers and agents overwrite their arguments, but write their output there. Never true for this process.
    """
    if process.pid == os.getpid():
        return False
    return any(f"{folder}/" in name for name in open_paths(process))


def open_paths(process: psutil.Process) -> list[str]:
    """The arguments of a process and the files that it writes to (`path (deleted)` for a removed one)."""
    found: list[str] = []
    with contextlib.suppress(psutil.Error, OSError):
        found += process.cmdline()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if descriptor.lstat().st_mode & stat.S_IWUSR:
                    found.append(os.readlink(descriptor))
    return found


def kill(processes: list[psutil.Process], timeout_s: float = 10.0) -> None:
    """Send SIGKILL to all of them and wait until they are dead, at most `timeout_s`: one may hang in the kernel."""
    for process in processes:  # stop all first: a raylet must not start another process meanwhile
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    deadline_s = time.monotonic() + timeout_s
    while any(map(is_alive, processes)) and time.monotonic() < deadline_s:
        time.sleep(0.005)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.wait(0)  # so that our own children leave no zombies


def is_alive(process: psutil.Process) -> bool:
    """False also for a zombie, which only waits for its parent to read its exit status."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def tree(root: psutil.Process | None) -> list[psutil.Process]:
    """A process and all its descendants, the process itself first."""
    if root is None:
        return []
    with contextlib.suppress(psutil.NoSuchProcess):
        return [root, *root.children(recursive=True)]
    return []


def send_signal(processes: list[psutil.Process], number: int) -> None:
    """Send a signal to all that are still there."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def clusters_of_raylets(processes: Iterable[psutil.Process] | None = None, besides: str = "") -> list[str]:
    """The GCS addresses of the Ray nodes among these processes (None: all), without nodes whose arguments name a folder
    that begins with `besides`."""
    found = set()
    for process in psutil.process_iter() if processes is None else processes:
        with contextlib.suppress(psutil.Error):
            words = process.cmdline() if process.name() == "raylet" else []
            if not (besides and any(f"/{besides}" in word for word in words)):
                found |= {word.removeprefix(GCS_FLAG) for word in words if word.startswith(GCS_FLAG)}
    return sorted(found)


def cluster_here(processes: Iterable[psutil.Process] | None = None) -> str:
    """The GCS address of the cluster of this computer, by Ray's note of the newest or else by a raylet (None: any):
    after `ray start --temp-dir`, or with another TMPDIR, the note lies elsewhere.

    Whoever shares the computer may write a note as Ray's, or start a process that looks like one of Ray's. The address
    in it would get this user's token, so only what this user or root has written or started is believed. Raises
    ClusterError.
    """
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    if noted := _believed(Path(temporary) / "ray" / "ray_current_cluster"):
        return noted
    every = list(psutil.process_iter() if processes is None else processes)
    ours = [each for each in every if _is_believed(_user_of(each))]
    match clusters_of_raylets(ours, besides=PREFIX):  # runs of ours have clusters of their own
        case [only]:
            return only
        case found:
            count = f"{len(found)} Ray clusters" if found else "no Ray cluster"
            these = f" ({', '.join(found)})" if found else ""
            others = [each for each in clusters_of_raylets(every, besides=PREFIX) if each not in found]
            theirs = f", or the address of another user's ({', '.join(others)})" if others else ""
            raise ClusterError(
                f"address: found {count} on this computer for auto{these}, expected one that `ray start` began{theirs}"
            )


def _believed(note: Path) -> str:
    """The text of a note of Ray's; empty where there is none, or another user's."""
    try:
        file = os.open(note, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(file, errors="replace") as opened:
        about = os.fstat(file)
        return opened.read().strip() if stat.S_ISREG(about.st_mode) and _is_believed(about.st_uid) else ""


def _user_of(process: psutil.Process) -> int:
    try:
        return process.uids().real
    except psutil.Error:
        return -1  # it has ended


def _is_believed(user: int) -> bool:
    return user in (os.geteuid(), 0)
