"""Checkpoints are written beside the run: whatever goes wrong there costs a checkpoint and is said, never the run."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from agileml.checkpoints.errors import CheckpointError
from agileml.checkpoints.store import FolderStore
from agileml.config.job import from_values
from agileml.core.protocol.commands import NodeEvent, PartSaved, SavePart
from agileml.core.protocol.messages import Saved, SaveFailed
from agileml.core.protocol.view import CutId
from agileml.process.checkpoint_io import PartWriter, check_place
from agileml.process.spec import RunSpec
from tests.agileml.checkpoints.rig import cut_of

JOB = {"application": "mlr", "data": {"kind": "digits"}, "clocks": 8}


class FailingStore(FolderStore):
    """The first write fails as no disk does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._has_failed = False

    def put(self, name: str, chunks: Iterable[bytes], size: int) -> None:
        if not self._has_failed:
            self._has_failed = True
            raise RuntimeError("no such thing was expected")
        super().put(name, chunks, size)


def test_a_write_that_fails_in_a_way_that_nobody_expected_is_answered_and_the_next_one_written(
    tmp_path: Path,
) -> None:
    answers: queue.SimpleQueue[NodeEvent] = queue.SimpleQueue()
    saving = PartWriter(FailingStore(tmp_path), answers.put)
    for clock in (1, 2):
        name = CutId(clock, 1)
        saving.ask(SavePart(name, 0, cut_of(name, 0)))
    first, second = (answers.get(timeout=120.0) for _ in range(2))
    saving.stop()
    assert isinstance(first, PartSaved)
    assert first.outcome == SaveFailed(CutId(1, 1), 0, "RuntimeError: no such thing was expected")
    assert isinstance(second, PartSaved)
    assert isinstance(second.outcome, Saved)


def test_one_place_under_two_names_is_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "link").symlink_to("saved")
    monkeypatch.chdir(tmp_path)
    for name in ("saved", "./saved/", str(tmp_path / "saved"), "link"):
        spec = RunSpec(
            "run", from_values({**JOB, "checkpoint": {"path": str(tmp_path / "saved")}}), resume=name
        )
        assert [store.where for store in spec.stores()] == [str(tmp_path / "saved")], name
    spec = RunSpec("run", from_values({**JOB, "checkpoint": {"path": "saved"}}), resume="other")
    assert [store.where for store in spec.stores()] == ["saved", "other"]


def test_a_place_that_takes_nothing_just_then_ends_a_run_that_begins_and_no_restart(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    spec = RunSpec("run", from_values({**JOB, "checkpoint": {"path": str(tmp_path / "file" / "saved")}}))
    with pytest.raises(CheckpointError, match="file"):
        check_place(spec)
    check_place(replace(spec, restarts=1))
