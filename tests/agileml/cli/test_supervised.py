"""The process of a supervised run that begins again: where it begins, and what it does when it cannot tell."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from agileml.errors import CHECKPOINTS_UNREAD_CODE
from agileml.events.run import CheckpointSaved, ClockDone, RunStarted
from agileml.events.schema import RunEvent
from agileml.runs.event_log import EVENTS, EventLog
from agileml.runs.owner import this_process
from agileml.runs.supervision import SUPERVISION, Restart, Supervision, read_supervision

JOB = """\
application: mlr
data: {kind: blobs, examples: 200, features: 5, classes: 3}
clocks: 20
clocks_per_pass: 4
"""


def begin_again(folder: Path, place: Path, clock: int, *events: RunEvent) -> tuple[int, str]:
    """(exit code, what it said) of a restart, of a run with these events, whose supervisor knew of this clock."""
    out = folder / "run"
    out.mkdir()
    log = EventLog(out / EVENTS)
    for event in (RunStarted("job", {}, time.time(), this_process()), *events):
        log.write(event)
    log.close()
    restart = Restart(time.time(), "its process was ended by SIGKILL", clock)
    (out / SUPERVISION).write_text(Supervision(this_process(), 10, (restart,)).to_text())
    (folder / "job.yaml").write_text(JOB)
    words = ["--set", f"checkpoint.path={place}", "--out", str(out), "--supervised"]
    command = [sys.executable, "-m", "agileml.cli", "run", "job.yaml", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, done.stderr


def assert_tried_again(folder: Path, code: int, said: str) -> None:
    """The supervisor, or a service manager, gives the same command again."""
    assert code == CHECKPOINTS_UNREAD_CODE, said
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
