"""A full disk costs checkpoints or the report, never the run."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agileml.checkpoints.checkpoint import Check, newest
from agileml.checkpoints.opening import open_store
from agileml.events.run import CheckpointFailed, CheckpointSaved
from agileml.process.head import HeadState
from agileml.runs.folder import model_sha256
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import MLR, FaultRig, job

FULL = os.strerror(errno.ENOSPC)


def clock_of_newest(place: Path) -> int:
    found = newest(open_store(str(place)), print, Check.CHECKSUMS)
    return found.name.clock if found else 0


def test_a_planned_full_disk_is_said_and_the_last_whole_checkpoint_stays(tmp_path: Path) -> None:
    place = tmp_path / "saved"
    values = job(
        MLR,
        clocks=150,
        checkpoint={"path": str(place), "every_s": 0.02, "keep": 1},
        plan=[{"at_clock": 60, "disk_full": True, "seconds": 0.4}],
    )
    whole: list[int] = []

    def look(rig: FaultRig, state: HeadState) -> None:
        if any(isinstance(each.event, CheckpointFailed) for each in state.events):
            whole.append(clock_of_newest(place))

    ran = FaultRig(values, tmp_path, look).finish()
    assert ran.sha256 == reference(values)
    failed = ran.of(CheckpointFailed)
    assert failed
    assert all(note.reason == FULL for note in failed)
    assert whole
    assert min(whole) > 0  # while nothing could be written, there was one to go back to
    assert clock_of_newest(place) == 150


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("file systems can be mounted by root only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_and_has_room_again(small_disk: Path, tmp_path: Path) -> None:
    values = job(MLR, clocks=200, checkpoint={"path": str(small_disk / "saved"), "every_s": 0.05, "keep": 1})
    ballast = small_disk / "ballast"
    seen: list[str] = []

    def act(rig: FaultRig, state: HeadState) -> None:
        kinds = {type(each.event) for each in state.events}
        if not seen and CheckpointSaved in kinds:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            seen.append("full")
        elif seen == ["full"] and CheckpointFailed in kinds:
            assert clock_of_newest(small_disk / "saved") > 0
            ballast.unlink()
            seen.append("room")

    ran = FaultRig(values, tmp_path, act).finish()
    assert seen == ["full", "room"]
    assert ran.sha256 == reference(values)
    assert all(FULL in note.reason for note in ran.of(CheckpointFailed))
    assert clock_of_newest(small_disk / "saved") == 200


def test_a_report_that_does_not_fit_leaves_model_and_summary(tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    config.write_text(
        "application: mlr\ndata: {kind: digits}\nclocks: 8\nclocks_per_pass: 4\n"
        "optimizer: {kind: adam, learning_rate: 0.05}\n"
    )
    out = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.report_fails", str(config), str(out)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    problem = done.stderr.splitlines()[-1]
    assert problem.startswith(f"proteus: {out}/report.html could not be written: File too large (")
    assert problem.endswith("what was written before is whole")
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "config.yaml", "events.jsonl", "model.safetensors", "summary.json",
    ]  # fmt: skip
    assert len(model_sha256(out / "model.safetensors")) == 64
