"""The process of a supervised run that begins again: where it begins, and what it does when it cannot tell."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from agileml.checkpoints.store import FolderStore
from agileml.cli.supervise import _continued, _folder, _goes_on, supervise
from agileml.config.job import JobConfig, from_values
from agileml.core.protocol.view import CutId
from agileml.driver.stop_signal import SIGNALS
from agileml.errors import CHECKPOINTS_UNREAD_CODE
from agileml.events.run import CheckpointSaved, ClockDone, Process, RunRestarted, RunStarted
from agileml.events.schema import RunEvent
from agileml.events.terms import Cause, Trigger
from agileml.runs.event_log import EVENTS, EventLog
from agileml.runs.folder import EARLIER, MODEL, FolderError, RunFolder
from agileml.runs.owner import this_process
from agileml.runs.supervision import SUPERVISION, Restart, Supervision, alone, read_supervision
from agileml.session.supervisor import Supervisor
from tests.agileml.checkpoints.rig import write
from tests.agileml.events.samples import changed

JOB = """\
application: mlr
data: {kind: blobs, examples: 200, features: 5, classes: 3}
clocks: 20
clocks_per_pass: 4
"""


def begin_again(
    folder: Path,
    place: Path,
    clock: int,
    *events: RunEvent,
    screen: int = subprocess.PIPE,
    job: str = JOB,
    supervisor: Process | None = None,
) -> tuple[int, str]:
    """(exit code, what it said) of a restart, of a run with these events, whose supervisor knew of this clock."""
    out = folder / "run"
    out.mkdir()
    log = EventLog(out / EVENTS)
    for event in (RunStarted("job", {}, time.time(), this_process()), *events):
        log.write(event)
    log.close()
    restart = Restart(time.time(), "its process was ended by SIGKILL", clock)
    (out / SUPERVISION).write_text(Supervision(supervisor or this_process(), 10, (restart,)).to_text())
    (folder / "job.yaml").write_text(job)
    words = ["--set", f"checkpoint.path={place}", "--out", str(out), "--supervised"]
    command = [sys.executable, "-m", "agileml.cli", "run", "job.yaml", *words]
    done = subprocess.run(command, cwd=folder, stderr=screen, text=True, check=False, timeout=600)
    return done.returncode, done.stderr


def assert_tried_again(folder: Path, code: int, said: str, expected: int = CHECKPOINTS_UNREAD_CODE) -> None:
    """The supervisor, or a service manager, gives the same command again."""
    assert code == expected, said
    record = read_supervision(folder / "run")
    assert record is not None
    assert not record.is_over


@pytest.mark.parametrize("clock", [50, 0], ids=["the supervisor could read them", "nobody could"])
def test_a_restart_that_cannot_read_the_checkpoints_does_not_begin_at_the_start(
    clock: int, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    code, said = begin_again(tmp_path, tmp_path / "file" / "saved", clock, ClockDone(50, 0.1, 10, 0.1))
    assert "saved could not be read" in said
    assert_tried_again(tmp_path, code, said)


def test_a_restart_that_cannot_say_why_it_ends_is_tried_again_all_the_same(tmp_path: Path) -> None:
    """As where what it prints goes to a full disk."""
    (tmp_path / "file").write_text("no folder")
    with open("/dev/full", "w") as full:
        code, said = begin_again(tmp_path, tmp_path / "file" / "saved", 50, screen=full.fileno())
    assert_tried_again(tmp_path, code, said)


def test_a_process_whose_supervisor_died_before_it_began_does_not_begin(tmp_path: Path) -> None:
    """The same command goes on with the run: two processes would train it."""
    ended = Process(this_process().host, 1 << 22, 1.0)
    code, said = begin_again(tmp_path, tmp_path / "saved", 0, supervisor=ended)
    assert f"process {1 << 22}, which supervises {tmp_path / 'run'}, has ended" in said
    assert_tried_again(tmp_path, code, said, 2)


def test_a_restart_whose_data_is_not_there_just_now_is_tried_again(tmp_path: Path) -> None:
    """As on a file system that is not mounted yet after a reboot. The run had begun with the same config."""
    job = JOB.replace(
        "kind: blobs, examples: 200, features: 5, classes: 3", "kind: npz, path: share/data.npz"
    )
    code, said = begin_again(tmp_path, tmp_path / "saved", 0, ClockDone(5, 0.1, 10, 0.1), job=job)
    assert "data.path" in said and "share/data.npz" in said
    assert_tried_again(tmp_path, code, said, 2)


@pytest.mark.slow
def test_a_restart_whose_machines_do_not_come_is_tried_again(tmp_path: Path) -> None:
    """As in a cluster whose head is back before its nodes."""
    job = JOB + "machines: {reliable: 1, transient: 1, wait_s: 0.01}\n"
    code, said = begin_again(tmp_path, tmp_path / "saved", 0, ClockDone(5, 0.1, 10, 0.1), job=job)
    assert "no machine came for machines.wait_s = 0.01 s" in said
    assert_tried_again(tmp_path, code, said, 1)


@pytest.mark.parametrize(
    ("count", "since", "has_market", "goes_on"),
    [
        (2, [], False, False),  # it has waited for machines in vain, or was told to stop before they came
        (2, [changed(9, Trigger(Cause.START))], False, True),
        (2, [], True, True),  # its machines are given back
        (1, [changed(9, Trigger(Cause.START))], False, False),  # it has ended before it wrote to the log
    ],
)
def test_a_restart_goes_on_with_the_run_once_it_has_members(
    count: int, since: list[RunEvent], has_market: bool, goes_on: bool, tmp_path: Path
) -> None:
    log = EventLog(tmp_path / EVENTS)
    first = changed(3, Trigger(Cause.START))
    for event in (first, RunRestarted("killed", 50, 0, count, this_process()), *since):
        log.write(event)
    log.close()
    record = Supervision(this_process(), 10, (Restart(1.0, "killed", 30), Restart(2.0, "killed", 50)))
    assert _goes_on(tmp_path, record, has_market=has_market) is goes_on


@pytest.mark.parametrize(
    ("clock", "events"),
    [(0, (ClockDone(50, 0.1, 10, 0.1), CheckpointSaved(50))), (50, ())],
    ids=["by the log", "by the supervisor"],
)
def test_a_place_that_looks_empty_though_the_run_has_saved_is_not_taken_for_a_new_one(
    clock: int, events: tuple[RunEvent, ...], tmp_path: Path
) -> None:
    """As a folder looks whose file system is not mounted yet."""
    (tmp_path / "saved").mkdir()
    code, said = begin_again(tmp_path, tmp_path / "saved", clock, *events)
    assert "saved holds no whole checkpoint, expected that of clock 50" in said
    assert_tried_again(tmp_path, code, said)


def test_a_restart_begins_from_what_it_finds_and_says_so(tmp_path: Path) -> None:
    """The supervisor could not read the checkpoints when it decided, so it knew of an older one."""
    EventLog(tmp_path / EVENTS).close()
    saved, old = str(tmp_path / "saved"), str(tmp_path / "old")
    restart = Restart(1.0, "its process was ended by SIGKILL", 30)
    write(FolderStore(tmp_path / "old"), CutId(30, 2))
    assert _continued(restart, tmp_path, saved, old) == (old, restart)
    write(FolderStore(tmp_path / "saved"), CutId(50, 3))
    assert _continued(restart, tmp_path, saved, old) == (saved, replace(restart, clock=50))
    nothing = replace(restart, clock=0)
    assert _continued(nothing, tmp_path, str(tmp_path / "none"), None) == (None, nothing)


def ended(out: Path, *, has_result: bool) -> None:
    """The folder of a supervised run that is over, with a checkpoint where it writes them by default."""
    out.mkdir()
    process = Process(this_process().host, 1 << 22, 1.0)
    (out / SUPERVISION).write_text(
        Supervision(process, 10, (Restart(1.0, "killed", 3),), is_over=True).to_text()
    )
    log = EventLog(out / EVENTS)
    log.write(RunStarted("job", {}, time.time(), process))
    log.close()
    write(FolderStore(out / "checkpoints"), CutId(30, 2))
    if has_result:
        (out / MODEL).write_text("trained for a week")


def supervise_in(folder: Path, *words: str) -> tuple[int, str]:
    """(exit code, what it said) of the command that supervises a job in `folder / "run"`."""
    (folder / "job.yaml").write_text(JOB)
    command = [sys.executable, "-m", "agileml.cli", "run", "job.yaml", "--supervise", "--out", "run", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, done.stderr


@pytest.mark.parametrize(("words", "has_result"), [((), False), (("--overwrite",), True)])
def test_a_run_that_cannot_begin_leaves_the_earlier_one_as_it_was(
    words: tuple[str, ...], has_result: bool, tmp_path: Path
) -> None:
    ended(tmp_path / "run", has_result=has_result)
    before = contents(tmp_path / "run")
    code, said = supervise_in(tmp_path, "--set", "data.kind=nothing_known", *words)
    assert code == 2, said
    assert "data.kind" in said
    assert contents(tmp_path / "run") == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def job_in(out: Path, **more: object) -> JobConfig:
    return from_values({**yaml.safe_load(JOB), "out": str(out), **more})


def test_a_new_run_does_not_go_on_with_the_record_of_one_that_is_over(tmp_path: Path) -> None:
    """That record would tell the supervisor, when the new run's process is killed, that the run is over."""
    out = tmp_path / "run"
    ended(out, has_result=False)
    assert _folder(job_in(out), "job", None, overwrite=False) == (out, True)
    assert read_supervision(out) is None
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    said: list[str] = []
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        code = Supervisor([sys.executable, "-c", killed], out, lambda: 0, said.append).run(1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert code == 128 + signal.SIGKILL
    assert ["goes on" in each for each in said] == [True, False], said


def test_a_new_folder_that_the_disk_refuses_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FolderError, match="cannot be made: File name too long"):
        _folder(from_values(yaml.safe_load(JOB)), "n" * 250, None, overwrite=False)


def test_a_run_that_begins_in_place_of_another_removes_it_with_its_own_checkpoints(tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended(out, has_result=True)
    (out / "notes.txt").write_text("the user's own")
    assert _folder(job_in(out), "job", None, overwrite=True) == (out, True)
    RunFolder.create(out, "job").events.close()
    assert sorted(os.listdir(out)) == [EVENTS, "notes.txt"]


def test_checkpoints_that_the_new_run_needs_or_that_are_elsewhere_stay(tmp_path: Path) -> None:
    for number, (resume, more) in enumerate(
        [
            ("run-0/checkpoints", {}),
            (None, {"checkpoint": {"path": str(tmp_path / "run-1" / "checkpoints")}}),
        ]
    ):
        out = tmp_path / f"run-{number}"
        ended(out, has_result=True)
        place = None if resume is None else str(tmp_path / resume)
        _folder(job_in(out, **more), "job", place, overwrite=True)
        assert sorted(os.listdir(out)) == [EARLIER, "checkpoints"]


def test_one_folder_has_one_supervisor_wherever_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two hosts share the folder: a process of the other one is not seen here."""
    begun: list[Path] = []

    class Begun:
        def __init__(self, command: object, folder: Path, *_: object) -> None:
            begun.append(folder)

        def run(self, most: int) -> int:
            return 0

    monkeypatch.setattr("agileml.session.supervisor.Supervisor", Begun)
    out = tmp_path / "run"
    out.mkdir()
    (out / SUPERVISION).write_text(Supervision(Process("elsewhere", 7, 1.0), 1).to_text())
    before = contents(out)
    with alone(out) as is_alone:  # the supervisor on that host
        assert is_alone
        for overwrite in (False, True):
            with pytest.raises(
                FolderError, match=r"belongs to a run that goes on \(process 7 of elsewhere\)"
            ):
                supervise(job_in(out), "job", [], None, 1, overwrite=overwrite)
    assert not begun
    assert contents(out) == before
    assert supervise(job_in(out), "job", [], None, 1, overwrite=False) == 0
    assert begun == [out]
    assert contents(out) == before


@pytest.mark.parametrize("is_over", [True, False], ids=["a new run", "a run that had begun"])
def test_only_a_new_run_whose_input_is_refused_is_forgotten(
    is_over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that had begun goes on with the same command once its data is there again."""

    class Refused:
        def __init__(self, command: object, folder: Path, *_: object) -> None:
            self._folder = folder

        def run(self, most: int) -> int:
            (self._folder / SUPERVISION).write_text(Supervision(this_process(), most, (), is_over).to_text())
            return 2

    monkeypatch.setattr("agileml.session.supervisor.Supervisor", Refused)
    assert supervise(job_in(tmp_path / "run"), "job", [], None, 1, overwrite=False) == 2
    assert (tmp_path / "run").exists() is not is_over
    if not is_over:
        assert read_supervision(tmp_path / "run") is not None


def test_a_supervisor_that_cannot_say_why_starts_the_run_again_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where what it prints goes to a full disk."""
    said: list[Callable[[str], None]] = []

    class OnlyItsWords:
        def __init__(
            self, command: object, folder: object, newest: object, say: Callable[[str], None]
        ) -> None:
            said.append(say)

        def run(self, most: int) -> int:
            said[0]("the run goes on")
            return 0

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("agileml.session.supervisor.Supervisor", OnlyItsWords)
    monkeypatch.setattr("typer.echo", full)
    assert supervise(job_in(tmp_path / "run"), "job", [], None, 1, overwrite=False) == 0
