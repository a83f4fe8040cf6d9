"""The process of a supervised run that begins again: where it begins, and what it does when it cannot tell."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agileml.checkpoints.store import FolderStore
from agileml.cli.supervise import _continued
from agileml.core.protocol.view import CutId
from agileml.errors import CHECKPOINTS_UNREAD_CODE
from agileml.events.run import CheckpointSaved, ClockDone, RunStarted
from agileml.events.schema import RunEvent
from agileml.runs.event_log import EVENTS, EventLog
from agileml.runs.owner import this_process
from agileml.runs.supervision import SUPERVISION, Restart, Supervision, read_supervision
from tests.agileml.checkpoints.rig import write

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
