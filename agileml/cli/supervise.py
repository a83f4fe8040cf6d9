"""`--supervise`: the supervisor's side, and the side of the process that it supervises."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from agileml.config.job import JobConfig
    from agileml.runs.supervision import Restart, Supervision

SUPERVISED = "--supervised"  # tells the run's process that it has a supervisor
CHECKPOINTS = "checkpoints"  # in the run's folder, where the config names no place
PR_SET_PDEATHSIG = 1


def supervised_config(job: JobConfig, out: Path) -> JobConfig:
    """The config of a supervised run: its folder is `out`, and it writes checkpoints. Raises ConfigError."""
    changes: dict[str, object] = {"out": str(out)}
    if job.checkpoint is None:
        changes["checkpoint"] = {"path": str(out / CHECKPOINTS)}
    return job.changed(**changes)


def supervise(
    job: JobConfig, name: str, options: Sequence[str], resume: str | None, most: int, *, overwrite: bool
) -> int:
    """Run the command `proteus OPTIONS` under a supervisor. Returns the exit code.

    Raises BadParameter, FolderError, ConfigError.
    """
    from agileml.session.places import check_shadows

    check_shadows(Path.cwd())  # the run's process would look there first, and end before it can say why
    with ExitStack() as stack:
        if job.out is not None:
            stack.enter_context(_alone_in(Path(job.out)))
        out, is_new = _folder(job, name, resume, overwrite=overwrite)
        if job.out is None:
            stack.enter_context(_alone_in(out))
        return _supervise(supervised_config(job, out), out, options, resume, most, is_new=is_new)


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Keep others from supervising a run in a folder, which is made if need be. Raises FolderError."""
    from agileml.runs.folder import FolderError, check_out
    from agileml.runs.supervision import alone, read_supervision

    if not os.path.isdir(out):
        check_out(out)
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FolderError(f"out: {error.filename} cannot be written: {error.strerror}") from None
    with alone(out) as is_alone:
        if not is_alone:
            record = None
            with suppress(OSError, ValueError):  # its supervisor has not written it yet
                record = read_supervision(out)
            who = "" if record is None else f" (process {record.process.pid} of {record.process.host})"
            raise FolderError(f"out: {out} belongs to a run that goes on{who}")
        yield


def _supervise(
    job: JobConfig, out: Path, options: Sequence[str], resume: str | None, most: int, *, is_new: bool
) -> int:
    from agileml.checkpoints.errors import CheckpointError
    from agileml.config.market import CloudMarketConfig
    from agileml.runs.folder import has_earlier
    from agileml.session.restarts import BAD_INPUT
    from agileml.session.supervisor import Supervisor

    assert job.checkpoint is not None
    places = [job.checkpoint.path, resume]

    def say(sentence: str) -> None:
        # A full disk, or a terminal that has gone: the run is started again all the same.
        with suppress(OSError):
            typer.echo(f"proteus: {sentence}", err=True)

    base = Path.cwd()
    command = [sys.executable, "-m", "agileml.cli", *options, "--out", str(out), SUPERVISED]

    def newest_clock() -> int | None:
        try:
            return _newest_clock(places, base)
        except CheckpointError as error:
            say(str(error))
            return None

    code = None
    try:
        code = Supervisor(command, out, newest_clock, say).run(most)
    finally:
        is_forgotten = (code == BAD_INPUT and is_new and _is_over(out)) or has_earlier(out)
        if is_forgotten:
            _forget(out)
    if isinstance(job.market, CloudMarketConfig) and not is_forgotten and not _is_over(out):
        say(
            "its market may still hold machines: the same command goes on with them, "
            f"{job.market.unless_continued}"
        )
    return code


def _is_over(out: Path) -> bool:
    from agileml.runs.supervision import read_supervision

    record = read_supervision(out)
    return record is None or record.is_over


def _folder(job: JobConfig, name: str, resume: str | None, *, overwrite: bool) -> tuple[Path, bool]:
    """The run's folder, made if need be, and whether its run is a new one. Raises FolderError.

    An earlier run in it is put aside, with its record: a new run must not go on from that, as if it were over.
    """
    from agileml.runs.folder import FolderError, check_out, files_in, new_folder, put_aside
    from agileml.runs.owner import is_alive
    from agileml.runs.progress import Screen
    from agileml.runs.supervision import SUPERVISION, read_supervision

    if job.out is None:
        check_out(None)
        try:
            return new_folder(Path("runs"), name), True
        except OSError as error:
            raise FolderError(f"out: {error.filename} cannot be made: {error.strerror}") from None
    out = Path(job.out)
    try:
        before = read_supervision(out) if os.path.isdir(out) else None
    except (OSError, ValueError) as error:
        raise FolderError(f"out: {out / SUPERVISION}: {error}") from None
    if before is not None and not before.is_over and not overwrite:
        if is_alive(before.process):
            raise FolderError(f"out: {out} belongs to a run that goes on (process {before.process.pid})")
        print(f"proteus: goes on with the run in {out}", file=Screen())
        return out, False
    check_out(out, overwrite=overwrite)
    try:
        out.mkdir(parents=True, exist_ok=True)
        old = [*files_in(out), SUPERVISION]
        if overwrite and job.checkpoint is None and not _is_place(resume, out / CHECKPOINTS):
            old.append(CHECKPOINTS)  # no run can write there beside another one's
        put_aside(out, old)
    except OSError as error:
        raise FolderError(f"out: {error.filename} cannot be written: {error.strerror}") from None
    return out, True


def _is_place(resume: str | None, folder: Path) -> bool:
    """True where `--resume` names this folder."""
    return resume is not None and Path(os.path.expanduser(resume)).resolve() == folder.resolve()


def _forget(out: Path) -> None:
    """Leave nothing of a run that could not begin: what was in its folder before is there again."""
    from agileml.runs.folder import put_back
    from agileml.runs.supervision import LOCK, SUPERVISION

    for name in (SUPERVISION, LOCK):
        (out / name).unlink(missing_ok=True)
    with suppress(OSError):
        put_back(out)
        out.rmdir()


def _newest_clock(places: Sequence[str | None], base: Path) -> int:
    """The clock of the newest whole checkpoint at the first place that has one; 0 if no place has any.

    base: where relative places begin. Raises StoreError: a place cannot be read, so nobody knows what it has.
    """
    from agileml.checkpoints.checkpoint import newest
    from agileml.checkpoints.opening import open_store

    for place in (place for place in places if place is not None):
        if (manifest := newest(open_store(place, base), lambda problem: None)) is not None:
            return manifest.name.clock
    return 0


# -- the supervised process ---------------------------------------------------------------------------------


def run_supervised(job: JobConfig, name: str, resume: str | None, *, change_optimizer: bool = False) -> int:
    """Train as `run_job` does, in a process that dies with its supervisor. Returns the exit code.

    Its end is the end of the run, unless a restart cures it: the head has died, the controller for good, all reliable
    machines have, or a restart ends before it goes on with the run, as where its machines do not come.
    Raises what `run_job` raises.
    """
    from agileml.checkpoints.errors import StoreError
    from agileml.cluster.errors import ClusterError
    from agileml.errors import CHECKPOINTS_UNREAD_CODE, HEAD_LOST_CODE, RESTARTED_CODES
    from agileml.runs.folder import RunFolder
    from agileml.runs.progress import Screen
    from agileml.runs.supervision import SUPERVISION, read_supervision
    from agileml.session import run_job

    assert job.out is not None, "the supervisor names it"
    out = Path(job.out)
    job = supervised_config(job, out)
    assert job.checkpoint is not None
    _die_with_supervisor(out)
    restart = _restart(out)
    code = None
    try:
        if restart is not None:
            resume, restart = _continued(restart, out, job.checkpoint.path, resume)
        code = run_job(
            job,
            name=name,
            sequential=False,
            resume=resume,
            restart=restart,
            change_optimizer=change_optimizer,
        )
    except ClusterError as error:
        if restart is None:
            raise
        print(f"proteus: {error}", file=Screen())
        code = HEAD_LOST_CODE  # it may come back
    except StoreError as error:
        if restart is None:
            raise
        print(f"proteus: {error}", file=Screen())
        code = CHECKPOINTS_UNREAD_CODE  # they may be read a minute later
    finally:
        record = read_supervision(out)  # None: somebody has removed the folder
        if (
            record is not None
            and code not in RESTARTED_CODES
            and (restart is None or code == 0 or _goes_on(out, record, has_market=job.market is not None))
        ):
            RunFolder.write_text(out / SUPERVISION, replace(record, is_over=True).to_text())
    return code


def _die_with_supervisor(out: Path) -> None:
    """Raise FolderError if it has died already: nobody would end this process when the same command goes on."""
    from agileml.runs.folder import FolderError
    from agileml.runs.supervision import read_supervision

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    record = read_supervision(out)
    if record is not None and record.process.pid != os.getppid():
        raise FolderError(f"{SUPERVISED}: process {record.process.pid}, which supervises {out}, has ended")


def _goes_on(out: Path, record: Supervision, *, has_market: bool) -> bool:
    """True once the restart of a record goes on with the run: once it has members.

    The run has begun with the same input: if a restart refuses that, as data on a file system that is not mounted yet,
    or finds no machines, as in a cluster whose nodes are away longer than its head, they may be there a minute later. A
    job with a market goes on at once: its process gives everything back when it ends.
    """
    from agileml.events.run import MembershipChanged, RunRestarted
    from agileml.events.schema import SchemaError
    from agileml.runs.event_log import EVENTS, read_backwards

    has_members = has_market
    try:
        for each in read_backwards(out / EVENTS):
            match each.event:
                case MembershipChanged():
                    has_members = True
                case RunRestarted(count=count):
                    return has_members and count == len(record.restarts)
    except (OSError, SchemaError):
        pass
    return False


def _continued(restart: Restart, out: Path, place: str, resume: str | None) -> tuple[str | None, Restart]:
    """The checkpoints that a restart begins from (None: from the start of the run), and the restart with their clock.

    place: of the run's own checkpoints. resume: the place that the run began from. Raises StoreError: they cannot be
    read, or are not there though the run has written some, as where a file system is not mounted yet.
    """
    from agileml.checkpoints.errors import NotThereError
    from agileml.session.restarts import missing_clock

    base = Path.cwd()
    if clock := _newest_clock([place], base):
        return place, replace(restart, clock=clock)
    if (missing := missing_clock(restart, _saved_clock(out), resume)) is not None:
        raise NotThereError(
            f"{place} holds no whole checkpoint, expected that of clock {missing}, which the run has written; "
            "--overwrite begins anew"
        )
    return resume, replace(restart, clock=_newest_clock([resume], base))


def _saved_clock(out: Path) -> int | None:
    """The clock of the newest checkpoint in the log of a run; None without one. Raises FolderError."""
    from agileml.events.run import CheckpointSaved
    from agileml.events.schema import SchemaError
    from agileml.runs.event_log import EVENTS, read_backwards
    from agileml.runs.folder import FolderError

    try:
        events = (each.event for each in read_backwards(out / EVENTS))
        return next((event.clock for event in events if isinstance(event, CheckpointSaved)), None)
    except SchemaError as error:
        raise FolderError(str(error)) from None


def _restart(out: Path) -> Restart | None:
    """The restart that this process is; None for the first process, and where no log was begun. Raises FolderError."""
    from agileml.events.run import RunStarted
    from agileml.events.schema import SchemaError
    from agileml.runs.event_log import EVENTS, read_first
    from agileml.runs.folder import FolderError, RunFolder
    from agileml.runs.supervision import SUPERVISION, read_supervision

    record = read_supervision(out)
    if record is None:
        raise FolderError(
            f"{SUPERVISED}: {out} holds no {SUPERVISION}, expected the folder of a supervised run"
        )
    try:
        begun = any(isinstance(each.event, RunStarted) for each in read_first(out / EVENTS, 8))
    except FileNotFoundError:
        begun = False
    except SchemaError as error:
        raise FolderError(str(error)) from None
    if record.restarts and begun:
        return record.restarts[-1]
    RunFolder.clear(out)
    return None
