"""The status of a run, read from its folder, during the run or after it, without locks or queries."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from agileml.events.market import Billed
from agileml.events.run import (
    ClockDone,
    MembershipChanged,
    Process,
    RunFailed,
    RunFinished,
    RunStopped,
)
from agileml.events.schema import Log, Logged, RunEvent, SchemaError, events_of
from agileml.events.sums import ClocksDone, Standing
from agileml.runs.event_log import EVENTS, read_backwards
from agileml.runs.folder import CONFIG, SUMMARY, FolderError
from agileml.runs.owner import has_ended, is_owner_alive, owner_of
from agileml.runs.progress import RATE_WINDOW_S, Rate, Snapshot
from agileml.runs.summary import clocks_kept, goes_on, stopped_in
from agileml.runs.supervision import read_supervision
from agileml.runs.thinning import clocks_of


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
    from agileml.config.text import parse_yaml

    if (supervisor := _beginning(folder)) is not None:
        nothing = Snapshot(0, 0, None, 0, 0, 0, "begins")
        state = State.BROKEN if has_ended(supervisor, folder) else State.RUNNING
        return RunStatus(folder, state, supervisor, nothing, None, 0.0)
    try:
        process = owner_of(folder)
        log = newest_events(folder / EVENTS)
        clocks = int(parse_yaml((folder / CONFIG).read_text(encoding="utf-8"), CONFIG)[0]["clocks"])
    except SchemaError as error:
        raise FolderError(str(error)) from None
    except (OSError, ValueError, TypeError, LookupError, OverflowError):
        raise FolderError(f"{folder} holds no run, expected a folder with {EVENTS} and {CONFIG}") from None
    seconds = log[-1].t_s if log else 0.0  # a supervised run may have begun its log alone
    if events_of(log, RunFailed):
        state = State.BROKEN
    elif (folder / SUMMARY).is_file() and _is_of_this_end(log, process, folder):
        state = State.DONE if stopped_in(log) is None else State.STOPPED
    else:
        state = State.BROKEN if has_ended(process, folder) else State.RUNNING
    return RunStatus(folder, state, process, snapshot_of(log, clocks), clocks_per_s(log), seconds)


def _is_of_this_end(log: Log, process: Process, folder: Path) -> bool:
    """Whether the summary in a folder is that of the run's last process, by the end of its log. One that was killed
    with its result written goes on under its supervisor."""
    is_finished = bool(events_of(log, RunFinished)) or has_ended(process, folder)
    return is_finished and not goes_on(log)


def _beginning(folder: Path) -> Process | None:
    """The supervisor of a run that reads its data, which may take minutes, and has no log and no config there yet."""
    if (folder / EVENTS).exists() and (folder / CONFIG).exists():
        return None
    try:
        supervision = read_supervision(folder)
    except (OSError, ValueError):
        return None
    return None if supervision is None or supervision.is_over else supervision.process


def newest_events(path: Path) -> list[Logged[RunEvent]]:
    """The end of a log, in the order of time: back to a `Standing`, and over enough clocks to tell the speed.

    The whole log of a run that writes none. Raises SchemaError.
    """
    found: list[Logged[RunEvent]] = []
    has_standing, clocks = False, 0
    for each in read_backwards(path):
        found.append(each)
        has_standing |= isinstance(each.event, Standing)
        clocks += isinstance(each.event, ClockDone | ClocksDone)
        is_far = each.t_s < found[0].t_s - 2 * RATE_WINDOW_S
        if has_standing and clocks > 1 and is_far:
            break
    return sorted(found, key=lambda each: each.t_s)


def snapshot_of(log: Log, clocks: int) -> Snapshot:
    """The progress of a run of so many clocks, from its log or the end of it."""
    now = Snapshot(0, clocks, None, 0, 0, 0)
    for each in log:
        match each.event:
            case Standing(clock, _, loss, stage, reliable, transient, note, spent_usd):
                now = Snapshot(clock, clocks, loss, stage, reliable, transient, note, spent_usd)
            case ClockDone(clock, loss) | ClocksDone(clock=clock, loss=loss):
                now = replace(now, clock=clock, loss=loss if math.isfinite(loss) else None)
            case MembershipChanged(stage=stage, reliable=reliable, transient=transient):
                now = replace(now, stage=stage, reliable=reliable, transient=transient)
            case Billed(usd=usd):
                now = replace(now, spent_usd=usd)
            case RunStopped() | RunFinished():
                now = replace(now, note="")
    if stopped := stopped_in(log):  # the clocks after its last cut do not count
        kept = [done for done in clocks_kept(log) if done.clock <= stopped.clock]
        loss = kept[-1].loss if kept and math.isfinite(kept[-1].loss) else now.loss
        now = replace(now, clock=stopped.clock, loss=loss)
    return now


def clocks_per_s(log: Log) -> float | None:
    """The speed over the last seconds in which clocks went by."""
    rate = Rate()
    for each in clocks_of(log):
        rate.add(each.t_s, each.event.clock)
    return rate.clocks_per_s


def stop_process(process: Process, folder: Path) -> bool:
    """Ask the process of the run in a folder to end with its next cut; False: it is not alive here. Raises FolderError
    for that of another user."""
    if not is_owner_alive(process, folder):
        return False
    try:
        os.kill(process.pid, signal.SIGTERM)
    except PermissionError:
        raise FolderError(
            f"{folder} belongs to process {process.pid}, which is another user's; that user or root may stop it"
        ) from None
    except ProcessLookupError:  # it has just ended
        pass
    return True
