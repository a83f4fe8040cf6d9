"""A full disk costs checkpoints or the report, never the run."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agileml.application import Application, Settings, Table, Unit, Updates
from agileml.checkpoints.checkpoint import Check, newest
from agileml.checkpoints.opening import open_store
from agileml.cli import main
from agileml.core.protocol.plan import Strike
from agileml.events.run import CheckpointFailed, CheckpointSaved
from agileml.events.schema import RunEvent
from agileml.events.terms import Fault
from agileml.process.head import HeadState
from agileml.runs.folder import StorageError
from agileml.session import run, session
from tests.agileml.runs.full_disk import files_of_at_most
from tests.agileml.runs.model_file import model_sha256
from tests.faults.fault_rig import MLR, FaultRig, lasting, reference_of

FULL = os.strerror(errno.ENOSPC)
LIMIT_BYTES = 20_000  # on the size of a file: a report is larger, the rest is not


def clock_of_newest(place: Path) -> int:
    found = newest(open_store(str(place)), print, Check.CHECKSUMS)
    return found.name.clock if found else 0


def has(state: HeadState, kind: type[RunEvent]) -> bool:
    return any(isinstance(each.event, kind) for each in state.events)


def test_a_full_disk_is_said_and_the_last_whole_checkpoint_stays(tmp_path: Path) -> None:
    place = tmp_path / "saved"
    values = lasting(MLR, checkpoint={"path": str(place), "every_s": 0.02, "keep": 1})
    has_room_again: list[bool] = []
    whole: list[int] = []

    def look(rig: FaultRig, state: HeadState) -> None:
        if has_room_again:
            rig.ask_to_stop()
        elif has(state, CheckpointFailed):
            whole.append(clock_of_newest(place))
        elif has(state, CheckpointSaved):
            if whole:
                has_room_again.append(True)
            else:
                rig.machines["m0"].suffer(Strike(Fault.DISK_FULL, ("m0",), 0.4, 1.0))

    ran = FaultRig(values, tmp_path, look).finish()
    assert ran.sha256 == reference_of(ran, values)
    assert all(note.reason == FULL for note in ran.of(CheckpointFailed))
    assert min(whole) > 0  # while nothing could be written, there was one to go back to
    assert clock_of_newest(place) == ran.clocks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("file systems can be mounted by root only")
    yield folder
    # A thread that removes old checkpoints may still have it open.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_fills_up_and_has_room_again(small_disk: Path, tmp_path: Path) -> None:
    values = lasting(MLR, checkpoint={"path": str(small_disk / "saved"), "every_s": 0.05, "keep": 1})
    ballast = small_disk / "ballast"
    seen: list[str] = []

    def act(rig: FaultRig, state: HeadState) -> None:
        if not seen and has(state, CheckpointSaved):
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            seen.append("full")
        elif seen == ["full"] and has(state, CheckpointFailed):
            assert clock_of_newest(small_disk / "saved") > 0
            ballast.unlink()
            seen.append("room")
        elif seen == ["full", "room"] and has(state, CheckpointSaved):
            rig.ask_to_stop()

    ran = FaultRig(values, tmp_path, act).finish()
    assert ran.sha256 == reference_of(ran, values)
    assert all(FULL in note.reason for note in ran.of(CheckpointFailed))
    assert clock_of_newest(small_disk / "saved") == ran.clocks


def test_a_report_that_does_not_fit_leaves_model_and_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "job.yaml"
    config.write_text(
        "application: mlr\ndata: {kind: digits}\nclocks: 8\nclocks_per_pass: 4\n"
        "optimizer: {kind: adam, learning_rate: 0.05}\n"
    )
    out = tmp_path / "run"
    build, before = session.build_report, resource.getrlimit(resource.RLIMIT_FSIZE)

    def build_on_a_full_disk(*arguments: Any) -> str:
        report = build(*arguments)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, before[1]))
        return report

    monkeypatch.setattr(session, "build_report", build_on_a_full_disk)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["run", str(config), "--sequential", "--out", str(out)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert ended.value.code == 1, said
    problem = said.splitlines()[-1]
    assert problem.startswith(f"proteus: {out}/report.html could not be written: File too large (")
    assert problem.endswith("what was written before is whole")
    assert "Traceback" not in said
    assert sorted(path.name for path in out.iterdir()) == [
        "config.yaml", "events.jsonl", "model.safetensors", "summary.json",
    ]  # fmt: skip
    assert len(model_sha256(out / "model.safetensors")) == 64


class LargeState(Application):
    """Its optimizer's state fits nowhere."""

    def tables(self) -> list[Table]:
        return [Table("w", 1, 4)]

    def load(self, slice_index: int) -> int:
        return slice_index

    def process(self, unit: Unit, items: int, parameters: Mapping[str, Any]) -> Updates:
        return Updates({"w": np.ones((1, 4), np.float32)}, 1.0, 1)

    def optimizer_state(self, *arguments: Any) -> Any:
        return {"state": torch.zeros(1 << 20)}


def test_an_optimizer_that_does_not_fit_leaves_summary_and_report(tmp_path: Path) -> None:
    with (
        files_of_at_most(2 << 20),
        pytest.raises(StorageError, match=r"optimizer.pt could not be written: File too"),
    ):
        run(
            {"application": "package.module:Class", "clocks": 4, "slices": 8},
            LargeState(Settings(slices=8)),
            sequential=True,
            out=str(tmp_path / "run"),
        )
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "config.yaml", "events.jsonl", "model.safetensors", "report.html", "summary.json",
    ]  # fmt: skip
