"""The process that a run belongs to, as its log names it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import psutil

from agileml.events.run import Process, RunStarted
from agileml.events.schema import events_of
from agileml.runs.event_log import EVENTS, is_written, read_first
from agileml.runs.supervision import LOCK, SUPERVISION, read_supervision


def this_process() -> Process:
    return Process(socket.gethostname(), os.getpid(), psutil.Process().create_time())


def is_here(process: Process) -> bool:
    """True for a process of this host, alive or not."""
    return process.host == socket.gethostname()


def is_alive(process: Process) -> bool:
    """True for a process of this host that runs; one that has ended may be there for as long as its parent does not
    ask, as a notebook or the first process of a container.
    """
    try:
        found = psutil.Process(process.pid)
        is_it = is_here(process) and process.was_created(found.create_time())
        return is_it and found.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):  # a number that is none
        return False


def is_owner_alive(process: Process, folder: Path) -> bool:
    """As `is_alive`, for the owner of the run in a folder, also after a correction of the host's clock by more than a
    minute: the process of its number is the owner if it has the run's log open, or the lock of its supervisor."""
    if is_alive(process) or not is_here(process):
        return is_alive(process)
    return any(_has_open(process.pid, folder / name) for name in (EVENTS, LOCK))


def _has_open(pid: int, file: Path) -> bool:
    """True for a process of this host that has a file open, as far as we may look."""
    with suppress(OSError):
        wanted = file.stat()
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(descriptor.stat(), wanted):
                    return True
    return False


def owner_of(folder: Path) -> Process:
    """The process to ask about the run in a folder: its supervisor, or else the run's own.

    Raises OSError, LookupError, ValueError: the folder holds no run.
    """
    if (supervision := read_supervision(folder)) is not None:
        return supervision.process
    return events_of(read_first(folder / EVENTS, 8), RunStarted)[0].process


def running_in(folder: Path) -> Process | None:
    """The process whose run goes on in a folder; None where none does, or one of another host cannot be asked."""
    try:
        process = owner_of(folder)
    except (OSError, ValueError, LookupError):
        return None
    is_running = is_alive(process) and not has_ended(process, folder)
    return process if is_running or _is_held(folder) else None


def has_ended(process: Process, folder: Path) -> bool:
    """True where the run in a folder is over, whose owner is `process`: that has ended, or let go of the log, as a
    notebook does, which lives on. A supervisor has no log of its own. False for a process of another host.

    Who writes the log goes on, whatever its number says: after a correction of the host's clock by more than a minute
    that seems to be another process.
    """
    if not is_here(process) or _is_held(folder):
        return False
    return not is_alive(process) or not ((folder / SUPERVISION).exists() or is_written(folder / EVENTS))


def _is_held(folder: Path) -> bool:
    """True while some process surely writes the log in a folder, be it of another host or container."""
    return is_written(folder / EVENTS, if_unknown=False)


def forget_ended_supervisor(folder: Path) -> None:
    """Remove the record of a supervisor that has ended, or a damaged one: the folder belongs to a new run.

    Raises OSError.
    """
    try:
        supervision = read_supervision(folder)
    except ValueError:
        supervision = None
    # By its number alone a process knows its parent, whatever the host's clock has done since.
    is_ours = supervision is not None and supervision.process.pid == os.getppid()
    if supervision is None or not (is_ours or is_alive(supervision.process)):
        (folder / SUPERVISION).unlink(missing_ok=True)
