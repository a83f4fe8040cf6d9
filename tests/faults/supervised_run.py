"""What a supervised run has done so far, and its processes, for tests that end some of them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from agileml.events.run import CheckpointSaved, RunRestarted
from agileml.events.schema import Log, of_type
from agileml.runs.event_log import EVENTS, read_events

LIMIT_S = 600.0


def log_of(out: Path) -> Log:
    return read_events(out / EVENTS) if (out / EVENTS).exists() else []


def until(condition: Callable[[], bool], run: subprocess.Popen[str] | None = None) -> None:
    """Wait until a condition holds; a run that ends before is an error."""
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        assert run is None or run.poll() is None, run.communicate()[0]
        assert time.monotonic() < until_s, "this never came true"
        time.sleep(0.05)


def has_saved_since(out: Path, restarts: int) -> bool:
    """A checkpoint is whole that was written after so many restarts."""
    log = log_of(out)
    begun = of_type(log, RunRestarted)
    since_s = begun[-1].t_s if begun else 0.0
    return len(begun) == restarts and any(each.t_s > since_s for each in of_type(log, CheckpointSaved))


def driver_of(run: subprocess.Popen[str]) -> psutil.Process:
    (child,) = psutil.Process(run.pid).children()
    return child
