"""The process that a run belongs to, as its log names it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

from agileml.events.run import Process, RunStarted
from agileml.events.schema import SchemaError, events_of
from agileml.runs.event_log import EVENTS, read_first


def this_process() -> Process:
    return Process(socket.gethostname(), os.getpid(), psutil.Process().create_time())


def is_here(process: Process) -> bool:
    """True for a process of this host, alive or not."""
    return process.host == socket.gethostname()


def is_alive(process: Process) -> bool:
    """True for a process of this host that runs."""
    try:
        return is_here(process) and psutil.Process(process.pid).create_time() == process.created_s
    except psutil.Error:
        return False


def running_in(folder: Path) -> Process | None:
    """The process of this host whose run goes on in a folder; None where there is none."""
    try:
        process = events_of(read_first(folder / EVENTS, 8), RunStarted)[0].process
    except (OSError, SchemaError, LookupError):
        return None
    return process if is_alive(process) else None
