"""The status of a run, read from its folder, during the run or after it, without locks or queries."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agileml.events.market import Billed
from agileml.events.run import ClockDone, MembershipChanged, Process, RunFailed, RunStarted, RunStopped
from agileml.events.schema import Log, SchemaError, events_of, of_type
from agileml.runs.event_log import EVENTS, read_events
from agileml.runs.folder import CONFIG, SUMMARY, FolderError
from agileml.runs.owner import is_alive, is_here
from agileml.runs.progress import RATE_WINDOW_S, Rate, Snapshot
from agileml.runs.summary import clocks_kept


class State(StrEnum):
    """The state of a run."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"  # before its last clock, with a result
    BROKEN = "ended without a result"


@dataclass(frozen=True)
class RunStatus:
    """`seconds`: since its start, by its own events; `clocks_per_s` None: nothing has moved yet."""

    folder: Path
    state: State
    process: Process
    snapshot: Snapshot
    clocks_per_s: float | None
    seconds: float


def read_status(folder: Path) -> RunStatus:
    """The status of the run in a folder. Raises FolderError."""
    import yaml

    try:
        log = read_events(folder / EVENTS)
        clocks = int(yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))["clocks"])
        process = events_of(log, RunStarted)[0].process
    except SchemaError as error:
        raise FolderError(str(error)) from None
    except (OSError, ValueError, TypeError, LookupError, yaml.YAMLError):
        raise FolderError(f"{folder} holds no run, expected a folder with {EVENTS} and {CONFIG}") from None
    if events_of(log, RunFailed):
        state = State.BROKEN
    elif (folder / SUMMARY).is_file():
        state = State.STOPPED if events_of(log, RunStopped) else State.DONE
    elif is_alive(process) or not is_here(process):
        state = State.RUNNING
    else:
        state = State.BROKEN
    return RunStatus(folder, state, process, snapshot_of(log, clocks), clocks_per_s(log), log[-1].t_s)


def snapshot_of(log: Log, clocks: int) -> Snapshot:
    """The progress of a run of so many clocks, from its log."""
    done, changes, billed = clocks_kept(log), events_of(log, MembershipChanged), events_of(log, Billed)
    return Snapshot(
        clock=done[-1].clock if done else 0,
        clocks=clocks,
        loss=done[-1].loss if done and math.isfinite(done[-1].loss) else None,
        stage=changes[-1].stage if changes else 0,
        reliable=changes[-1].reliable if changes else 0,
        transient=changes[-1].transient if changes else 0,
        spent_usd=billed[-1].usd if billed else None,
    )


def clocks_per_s(log: Log) -> float | None:
    """The speed over the last seconds in which clocks went by."""
    rate = Rate()
    done = of_type(log, ClockDone)
    for each in done:
        if each.t_s >= done[-1].t_s - 2 * RATE_WINDOW_S:
            rate.add(each.t_s, each.event.clock)
    return rate.clocks_per_s


def stop_process(process: Process) -> bool:
    """Ask a run's process to end with its next cut; False: it is not alive here."""
    if not is_alive(process):
        return False
    os.kill(process.pid, signal.SIGTERM)
    return True
