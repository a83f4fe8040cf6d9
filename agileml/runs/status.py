"""How a run stands, read from its folder while it goes on or when it is over. Nothing is locked or asked."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from agileml.runs.folder import CONFIG, EVENTS, SUMMARY, FolderError, read_events
from agileml.runs.progress import RATE_WINDOW_S, Rate, Snapshot
from agileml.runs.summary import of_kind

Event = Mapping[str, Any]


class State(StrEnum):
    """What became of a run."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"  # before its last clock, with a result
    BROKEN = "ended without a result"


@dataclass(frozen=True)
class Process:
    """A process of some host; a later one with the same number was created at another time."""

    host: str
    pid: int
    created_s: float

    @property
    def is_here(self) -> bool:
        """True when it is one of this host's, alive or not."""
        return self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """True when it is one of this host's and runs."""
        try:
            return self.is_here and psutil.Process(self.pid).create_time() == self.created_s
        except psutil.Error:
            return False


def this_process() -> dict[str, Any]:
    """This process as an event holds it."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "created_s": psutil.Process().create_time()}


@dataclass(frozen=True)
class RunStatus:
    """`seconds`: since its start, by its own events; `clocks_per_s` None: nothing has moved yet."""

    folder: Path
    state: State
    process: Process
    snapshot: Snapshot
    clocks_per_s: float | None
    seconds: float


def is_run(folder: str | Path) -> bool:
    """True when a folder holds a run."""
    return (Path(folder) / EVENTS).is_file()


def read_status(folder: Path) -> RunStatus:
    """The status of the run in a folder. Raises FolderError."""
    import yaml

    try:
        events = read_events(folder / EVENTS)
        clocks = int(yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))["clocks"])
        process = Process(**of_kind(events, "run_started")[0]["process"])
    except (OSError, ValueError, TypeError, LookupError, yaml.YAMLError):
        raise FolderError(f"{folder} holds no run, expected a folder with {EVENTS} and {CONFIG}") from None
    if of_kind(events, "failed"):
        state = State.BROKEN
    elif (folder / SUMMARY).is_file():
        state = State.STOPPED if of_kind(events, "stopped") else State.DONE
    elif process.is_alive or not process.is_here:
        state = State.RUNNING
    else:
        state = State.BROKEN
    return RunStatus(
        folder, state, process, snapshot_of(events, clocks), clocks_per_s(events), events[-1]["t_s"]
    )


def snapshot_of(events: Sequence[Event], clocks: int) -> Snapshot:
    """Where a run of so many clocks is, by its events."""
    done, views = of_kind(events, "clock"), of_kind(events, "view")
    ends, spends = of_kind(events, "stopped"), of_kind(events, "spend")
    if ends:
        done = [event for event in done if event["clock"] <= ends[-1]["clock"]]
    view = views[-1] if views else {"stage": 0, "reliable": 0, "transient": 0}
    return Snapshot(
        clock=done[-1]["clock"] if done else 0,
        clocks=clocks,
        loss=done[-1]["loss"] if done else None,
        stage=view["stage"],
        reliable=view["reliable"],
        transient=view["transient"],
        spent_usd=spends[-1]["usd"] if spends else None,
    )


def clocks_per_s(events: Sequence[Event]) -> float | None:
    """The speed over the last seconds in which clocks went by."""
    rate = Rate()
    for at_s, clock in _recent(of_kind(events, "clock")):
        rate.add(at_s, clock)
    return rate.clocks_per_s


def _recent(clocks: Sequence[Event]) -> Iterator[tuple[float, int]]:
    if clocks:
        first_s = clocks[-1]["t_s"] - 2 * RATE_WINDOW_S
        yield from ((event["t_s"], event["clock"]) for event in clocks if event["t_s"] >= first_s)


def stop_process(process: Process) -> bool:
    """Ask a run's process to end with its next cut; False: it is not alive here."""
    if not process.is_alive:
        return False
    os.kill(process.pid, signal.SIGTERM)
    return True
