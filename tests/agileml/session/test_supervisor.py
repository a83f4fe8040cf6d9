"""The supervisor around real processes of no run: it starts them again, passes signals on, and keeps its record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agileml.driver.stop_signal import SIGNALS
from agileml.events.run import Process
from agileml.runs.owner import this_process
from agileml.runs.supervision import SUPERVISION, Restart, Supervision, read_supervision
from agileml.session.supervisor import Supervisor
from tests.agileml.runs.full_disk import files_of_at_most

# A process that is killed so often, then is over with exit code 3.
CHILD = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from agileml.runs.supervision import SUPERVISION, read_supervision
folder, deaths = Path(sys.argv[1]), int(sys.argv[2])
record = read_supervision(folder)
if len(record.restarts) < deaths:
    os.kill(os.getpid(), signal.SIGKILL)
(folder / SUPERVISION).write_text(replace(record, is_over=True).to_text())
sys.exit(3)
"""
# What the first process does before that: its folder cannot be read any more, and it dies.
AWAY = """
import os, sys
folder = sys.argv[1]
if not os.path.exists(f"{folder}-left"):
    open(f"{folder}-left", "w").close()
    os.rename(folder, f"{folder}-away")
    os.symlink(folder, folder)
    os.abort()
"""
# A process that ends well when it is told to.
ASKED = """
import signal, sys, time
from dataclasses import replace
from pathlib import Path
from agileml.runs.supervision import SUPERVISION, read_supervision
folder = Path(sys.argv[1])
def end(number, frame):
    record = read_supervision(folder)
    (folder / SUPERVISION).write_text(replace(record, is_over=True).to_text())
    (folder / "told").write_text(str(number))
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, end)
(folder / "ready").touch()
time.sleep(600)
"""
# Supervises one folder after the other: to start it takes a second of processor time.
PARENT = """
import sys
from pathlib import Path
from agileml.session.supervisor import Supervisor
from tests.agileml.runs.full_disk import files_of_at_most
code = 0
for folder in map(Path, sys.argv[1:]):
    command = [sys.executable, str(folder / "child.py"), str(folder)]
    code = code or Supervisor(command, folder, lambda: 0, print).run(3)
sys.exit(code)
"""


@pytest.fixture
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def supervised(folder: Path, deaths: int, most: int = 3) -> tuple[int, str]:
    """(exit code, what was said) of a supervisor in this process."""
    (folder / "child.py").write_text(CHILD)
    said: list[str] = []
    command = [sys.executable, str(folder / "child.py"), str(folder), str(deaths)]
    return Supervisor(command, folder, lambda: 0, said.append).run(most), "\n".join(said)


@pytest.mark.usefixtures("_signals_as_before")
def test_a_process_that_is_killed_is_started_again_and_its_end_is_the_run_s(tmp_path: Path) -> None:
    code, said = supervised(tmp_path, 2)
    assert code == 3, said
    assert said.count("SIGKILL; the run goes on") == 2
    record = read_supervision(tmp_path)
    assert record is not None
    assert record.is_over
    assert [each.cause for each in record.restarts] == ["its process was ended by SIGKILL"] * 2


@pytest.mark.usefixtures("_signals_as_before")
def test_a_run_that_is_over_and_then_killed_has_the_exit_code_of_the_signal(tmp_path: Path) -> None:
    """As Python's own end may crash, when all results are written."""
    (tmp_path / "child.py").write_text(CHILD.replace("sys.exit(3)", "os.kill(os.getpid(), signal.SIGSEGV)"))
    command = [sys.executable, str(tmp_path / "child.py"), str(tmp_path), "0"]
    assert Supervisor(command, tmp_path, lambda: 0, print).run(3) == 128 + signal.SIGSEGV


@pytest.mark.usefixtures("_signals_as_before")
def test_who_goes_on_with_a_run_names_itself_before_it_looks_for_checkpoints(tmp_path: Path) -> None:
    """That may take minutes where S3 is throttled: the same command, given once more, would go on with it too."""
    (tmp_path / SUPERVISION).write_text(Supervision(Process("elsewhere", 1, 1.0), 3).to_text())
    seen: list[Process] = []

    def newest() -> int:
        record = read_supervision(tmp_path)
        assert record is not None
        seen.append(record.process)
        return 0

    (tmp_path / "child.py").write_text(CHILD)
    command = [sys.executable, str(tmp_path / "child.py"), str(tmp_path), "0"]
    assert Supervisor(command, tmp_path, newest, print).run(3) == 3
    assert seen == [this_process()]


@pytest.mark.usefixtures("_signals_as_before")
@pytest.mark.parametrize(("end", "code"), [("sys.exit(1)", 1), ("sys.exit(0)", 1), ("os.abort()", 134)])
def test_a_run_whose_folder_somebody_removes_ends_with_a_sentence(
    tmp_path: Path, end: str, code: int
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    child = f"import os, shutil, sys; shutil.rmtree(sys.argv[1]); {end}"
    said: list[str] = []
    command = [sys.executable, "-c", child, str(folder)]
    assert Supervisor(command, folder, lambda: 0, said.append).run(3) == code
    assert said == [f"{folder} holds no supervision.json any more: somebody has removed it, and the run ends"]


@pytest.mark.usefixtures("_signals_as_before")
def test_a_file_system_that_is_away_for_a_while_does_not_end_the_run(tmp_path: Path) -> None:
    """As a share that does not answer, which has also ended the run's process."""
    folder, away = tmp_path / "run", tmp_path / "run-away"
    folder.mkdir()
    (tmp_path / "child.py").write_text(AWAY + CHILD)
    said: list[str] = []

    def say(sentence: str) -> None:
        said.append(sentence)
        if folder.is_symlink():
            folder.unlink()
            away.rename(folder)

    command = [sys.executable, str(tmp_path / "child.py"), str(folder), "0"]
    assert Supervisor(command, folder, lambda: 0, say, pause_s=0.01).run(3) == 3
    why = "could not be read: Too many levels of symbolic links; it is tried again every 0.01 s"
    assert said[0] == f"{folder}/supervision.json {why}"
    assert "the run goes on from its start (restart 1)" in said[1]


@pytest.mark.usefixtures("_signals_as_before")
def test_a_process_that_always_dies_is_given_up(tmp_path: Path) -> None:
    code, said = supervised(tmp_path, 9, most=2)
    assert code == 128 + signal.SIGKILL
    assert "given up after 2 restarts from its start" in said
    record = read_supervision(tmp_path)
    assert record is not None
    assert not record.is_over  # the same command may try again


@pytest.mark.usefixtures("_signals_as_before")
def test_a_process_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    """As where the host is short of memory or processes, or its Python is just being replaced."""
    python = tmp_path / "python"
    said: list[str] = []

    def say(sentence: str) -> None:
        said.append(sentence)
        if not python.exists():
            python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
            python.chmod(0o755)

    (tmp_path / "child.py").write_text(CHILD)
    command = [str(python), str(tmp_path / "child.py"), str(tmp_path), "0"]
    assert Supervisor(command, tmp_path, lambda: 0, say).run(3) == 3, said
    assert "could not be started" in said[0] and "goes on" in said[1]


@pytest.mark.usefixtures("_signals_as_before")
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_full_disk_holds_a_restart_up_until_there_is_room(tmp_path: Path, is_stopped: bool) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    said: list[str] = []
    disk = ExitStack()

    def fill() -> int:
        disk.enter_context(files_of_at_most(10))
        return 0

    def say(sentence: str) -> None:
        said.append(sentence)
        if "could not be written" in sentence:
            disk.close()
            if is_stopped:
                os.kill(os.getpid(), signal.SIGTERM)

    command = [sys.executable, str(tmp_path / "child.py"), str(tmp_path), "1"]
    with disk:
        code = Supervisor(command, tmp_path, fill, say, pause_s=0.01).run(3)
    assert [("could not be written" in each, "tried again every" in each) for each in said[1:]] == [
        (True, True)
    ]
    record = read_supervision(tmp_path)
    assert record is not None
    assert (code, len(record.restarts)) == ((128 + signal.SIGKILL, 0) if is_stopped else (3, 1))


def test_signals_are_passed_on_once_and_nothing_starts_again(tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    folders = [tmp_path / str(int(number)) for number in numbers]
    for folder in folders:
        folder.mkdir()
        (folder / "child.py").write_text(ASKED)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *map(str, folders)])
    try:
        for number, folder in zip(numbers, folders, strict=True):
            until_s = time.monotonic() + 300
            while not (folder / "ready").exists():
                assert parent.poll() is None
                assert time.monotonic() < until_s
                time.sleep(0.02)
            parent.send_signal(number)
        assert parent.wait(300) == 0
    finally:
        parent.kill()
        parent.wait()
    for number, folder in zip(numbers, folders, strict=True):
        assert (folder / "told").read_text() == str(int(number))
        record = read_supervision(folder)
        assert record is not None and not record.restarts


@pytest.mark.usefixtures("_signals_as_before")
def test_a_record_that_is_not_over_is_gone_on_with(tmp_path: Path) -> None:
    """As after a power failure: the supervisor died with its process."""
    before = Supervision(Process("here", 7, 1.0), 3)
    (tmp_path / SUPERVISION).write_text(before.to_text())
    assert supervised(tmp_path, 1)[0] == 3
    record = read_supervision(tmp_path)
    assert record is not None
    assert [each.cause for each in record.restarts] == ["its supervisor had ended"]
    assert record.process.pid == os.getpid()


def test_a_record_reads_back_as_it_was_and_other_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / SUPERVISION).write_text(json.dumps({"version": 1}))
    with pytest.raises(ValueError, match="expected the record of a supervised run"):
        read_supervision(tmp_path)
    record = Supervision(this_process(), 3, (Restart(1.5, "killed", 7),), is_over=True)
    assert Supervision.from_text(record.to_text()) == record
    assert read_supervision(tmp_path / "nowhere") is None
    assert os.listdir(tmp_path) == [SUPERVISION]
