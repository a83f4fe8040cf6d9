"""`proteus stop` with the folder of a run of this computer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agileml.cli import jobs, main
from agileml.events.run import Process, RunStarted
from agileml.events.sums import Standing
from agileml.runs.folder import RunFolder, check_out
from agileml.runs.owner import this_process
from agileml.runs.status import State, read_status
from agileml.runs.supervision import SUPERVISION, Supervision

LIVES_ON = """
import signal, sys
from agileml.events.run import RunStarted
from agileml.runs.folder import RunFolder
from agileml.runs.owner import this_process
folder = RunFolder.create(sys.argv[1], "job")
folder.write_config("clocks: 8")
folder.events.write(RunStarted("job", {}, 0.0, this_process()))
signal.signal(signal.SIGTERM, lambda *_: (folder.write_summary({}), folder.events.close()))
print("begun", flush=True)
sys.stdin.read()
"""


def test_stop_waits_for_the_end_of_the_run_and_not_of_a_program_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a notebook does, whose run `proteus stop` ended."""
    monkeypatch.setattr(jobs, "LATER_S", 0.1)
    command = [sys.executable, "-c", LIVES_ON, str(tmp_path / "run")]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None and program.stdout.readline() == "begun\n"
        with pytest.raises(SystemExit) as ended:
            main(["stop", str(tmp_path / "run")])
        assert not ended.value.code and program.poll() is None
        assert f"{tmp_path / 'run'}: done, " in capsys.readouterr().out
        check_out(tmp_path / "run", overwrite=True)
    finally:
        program.communicate("")


def test_stop_leaves_a_run_that_could_not_end_with_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run with --sequential has no cuts: what asks others to end with the next one would cost all of its work."""
    folder = RunFolder.create(tmp_path / "run", "job")
    folder.write_config("clocks: 8")
    folder.events.write(RunStarted("job", {}, 0.0, this_process()))
    folder.events.write(Standing(3, 8, 0.5, 0, 1, 0, "sequential", None))
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: (signals.append(number), folder.events.close()))
    try:
        with pytest.raises(SystemExit) as ended:
            main(["stop", str(folder.path)])
    finally:
        signal.signal(signal.SIGTERM, before)
        folder.events.close()
    assert (ended.value.code, signals) == (2, [])
    assert f"no cut to end with: Ctrl-C, or kill {os.getpid()}, ends it without" in capsys.readouterr().err


def test_a_supervised_run_that_reads_its_data_can_be_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which may take minutes, and has no log until then."""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    try:
        process = Process(socket.gethostname(), supervisor.pid, psutil.Process(supervisor.pid).create_time())
        (tmp_path / SUPERVISION).write_text(Supervision(process, 3).to_text())
        assert read_status(tmp_path).state is State.RUNNING
        with pytest.raises(SystemExit) as ended:
            main(["stop", str(tmp_path)])
        assert not ended.value.code
        said = capsys.readouterr().out
        assert "asked to end" in said and "ended without a result" in said
        assert supervisor.wait(60) == -signal.SIGTERM
    finally:
        supervisor.kill()
        supervisor.communicate()
