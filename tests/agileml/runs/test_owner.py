"""Whose a run is: one whose program lives on is over once nobody writes its log."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from agileml.config.job import from_values
from agileml.events.run import ClockDone, Process, RunFinished, RunRestarted, RunStarted
from agileml.events.schema import Logged, header, to_line
from agileml.events.sums import Standing
from agileml.runs.event_log import EVENTS, EventLog, is_written, read_events
from agileml.runs.folder import CONFIG, FolderError, RunFolder, check_out
from agileml.runs.owner import is_alive, this_process
from agileml.runs.report.page import ReportError, rebuild
from agileml.runs.status import State, read_status, stop_process
from agileml.runs.summary import summarize
from agileml.runs.supervision import LOCK


@pytest.mark.parametrize("result", ["model.safetensors", None])
def test_a_program_may_replace_its_own_run_once_that_is_over(tmp_path: Path, result: str | None) -> None:
    """As a cell of a notebook that is executed again. One that failed without a result is replaced without a word."""
    first = RunFolder.create(tmp_path / "run", "mf")
    first.events.write(RunStarted("mf", {}, 0.0, this_process()))
    if result is not None:
        (tmp_path / "run" / result).touch()
    with pytest.raises(FolderError, match=f"belongs to a run that goes on .process {os.getpid()}."):
        check_out(tmp_path / "run", overwrite=True)
    first.events.close()
    if result is not None:
        with pytest.raises(FolderError, match="or --overwrite to replace it"):
            check_out(tmp_path / "run")
    RunFolder.create(tmp_path / "run", "mf", overwrite=result is not None).events.close()
    assert read_events(tmp_path / "run" / "events.jsonl") == []


@pytest.mark.parametrize(
    "owner",
    [
        # The host's clock was an hour off when the run began.
        replace(this_process(), created_s=this_process().created_s - 3600.0),
        Process("another-container", 1, 0.0),
    ],
)
def test_nobody_takes_the_folder_of_a_run_that_writes_its_log(tmp_path: Path, owner: Process) -> None:
    out = tmp_path / "run"
    first = RunFolder.create(out, "mf")
    first.events.write(RunStarted("mf", {}, 0.0, owner))
    (out / CONFIG).write_text("clocks: 9\n")
    assert read_status(out).state is State.RUNNING
    with pytest.raises(FolderError, match="holds another run"):
        check_out(out)
    with pytest.raises(FolderError, match=f"goes on .process {owner.pid} of {owner.host}.; stop it first"):
        check_out(out, overwrite=True)
    first.events.close()
    RunFolder.create(out, "mf", overwrite=True).events.close()


@pytest.mark.parametrize("is_supervised", [False, True])
def test_a_run_can_be_stopped_after_a_correction_of_the_clock(tmp_path: Path, is_supervised: bool) -> None:
    """By its time of creation the process of its number seems to be another one then."""
    ready = "print(flush=True); sys.stdin.read()"
    script = f"import os, sys; file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); {ready}"
    (tmp_path / EVENTS).touch()
    file = tmp_path / (LOCK if is_supervised else EVENTS)
    command = [sys.executable, "-c", script, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        began_s = psutil.Process(child.pid).create_time()
        owner = Process(this_process().host, child.pid, began_s - 3600.0)
        other = tmp_path / "of another run"
        other.mkdir()
        (other / EVENTS).touch()
        assert not stop_process(owner, other)
        assert not stop_process(replace(owner, host="elsewhere"), tmp_path)
        assert child.poll() is None
        assert stop_process(owner, tmp_path)
        assert child.wait() == -signal.SIGTERM
    assert not stop_process(owner, tmp_path)


def test_a_run_of_another_user_is_not_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "kill", refused)
    with pytest.raises(
        FolderError, match=rf"belongs to process {os.getpid()}, which is another user's; that user or"
    ):
        stop_process(this_process(), tmp_path)


def test_the_result_of_a_process_that_was_killed_is_not_that_of_the_run_which_goes_on(tmp_path: Path) -> None:
    """As of one that was killed while it copied its result: its supervisor starts it again."""
    out = tmp_path / "run"
    folder = RunFolder.create(out, "mf")
    folder.write_config("clocks: 40\n")
    started, again = this_process(), RunRestarted("killed", 9, 1, 1, this_process())
    folder.events.write(RunStarted("mf", {}, 0.0, started), t_s=0.0)
    folder.events.write(RunFinished(10.0), t_s=10.0)
    folder.write_summary(a_summary())
    assert read_status(out).state is State.DONE and has_tiles(out)
    folder.events.write(again, t_s=20.0)
    assert read_status(out).state is State.RUNNING and not has_tiles(out)
    for clock in range(10, 40):  # its restart is no longer among the newest events
        folder.events.write(Standing(clock, 40, 0.5, 1, 1, 0, "", None), t_s=20.0 + clock)
        folder.events.write(ClockDone(clock, 0.5, 8, 1.0), t_s=20.0 + clock)
    assert read_status(out).state is State.RUNNING
    folder.events.write(RunFinished(70.0), t_s=70.0)
    assert read_status(out).state is State.DONE and has_tiles(out)
    folder.events.close()


def a_summary() -> dict[str, Any]:
    config = from_values({"application": "lda", "clocks": 9})
    return summarize([], config, params_sha256="", metrics={}, split={}, versions={})


def has_tiles(out: Path) -> bool:
    """Whether the report of a run's folder has the headline figures of a summary."""
    return '"tiles": [[' in rebuild(out).read_text()


def test_a_log_is_written_until_it_is_closed_also_when_a_new_file_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert not is_written(path)
    log = EventLog(path, segment_bytes=1)
    for _ in range(3):
        log.write(RunStarted("mf", {}, 0.0, this_process()))
        assert is_written(path)
    log.close()
    assert not is_written(path)
    log = EventLog(path, continue_at_s=1.0)
    assert is_written(path)
    log.close()


def test_a_process_that_has_ended_is_not_alive_though_its_parent_does_not_ask() -> None:
    """As where a notebook or the first process of a container started the run: nobody could go on with it."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    process = Process(this_process().host, child.pid, psutil.Process(child.pid).create_time())
    assert is_alive(process)
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.pid_exists(child.pid)
    assert not is_alive(process)
    child.wait()


@pytest.mark.parametrize(
    ("config", "line", "said"),
    [
        ("clocks: 3\n", "[" * 100_000, "expected JSON"),
        ("clocks: 3\n", '{"kind": "warning", "t_s": ' + "9" * 5000 + "}", "expected JSON"),
        ("clocks: 3\n", '{"kind": "warning", "t_s": 1' + "0" * 400 + "}", "expected a number"),
        ("clocks: .inf\n", "", "holds no run"),
        ("clocks: " + "[" * 5000, "", "holds no run"),
    ],
    ids=["brackets", "digits", "large", "infinite", "deep"],
)
def test_a_folder_that_no_run_has_written_so_is_a_sentence(
    config: str, line: str, said: str, tmp_path: Path
) -> None:
    begun = to_line(Logged(0.0, RunStarted("mf", {}, 0.0, replace(this_process(), pid=-1))))
    (tmp_path / "events.jsonl").write_text(f"{header()}\n{begun}\n")
    (tmp_path / CONFIG).write_text("clocks: 3\n")
    assert read_status(tmp_path).state is State.BROKEN, "a number that no process has"
    (tmp_path / "events.jsonl").write_text(
        f"{header()}\n{begun}\n{line}\n" if line else f"{header()}\n{begun}\n"
    )
    (tmp_path / CONFIG).write_text(config)
    with pytest.raises(FolderError, match=said):
        read_status(tmp_path)
    if line:
        with pytest.raises(ReportError, match=said):
            rebuild(tmp_path)
