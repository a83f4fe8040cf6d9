"""Checkpoints are written beside the run: whatever goes wrong there costs a checkpoint and is said, never the run."""

from __future__ import annotations

import queue
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from agileml.checkpoints.errors import CheckpointError, NotThereError, StoreError
from agileml.checkpoints.store import FolderStore
from agileml.config.job import from_values
from agileml.core.protocol.commands import NodeEvent, PartSaved, SavePart
from agileml.core.protocol.messages import Saved, SaveFailed
from agileml.core.protocol.view import CutId
from agileml.process.checkpoint_io import PartWriter, check_place, resumed
from agileml.process.spec import RunSpec
from tests.agileml.checkpoints.rig import IDENTITY, cut_of, write

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


class SmallStore(FolderStore):
    """A disk with room for so many bytes."""

    room = 0

    def put(self, name: str, chunks: Iterable[bytes], size: int) -> None:
        if sum(self.list("").values()) + size > self.room:
            raise StoreError(f"{name} could not be written: No space left on device")
        super().put(name, chunks, size)


def test_checkpoints_that_did_not_fit_do_not_take_the_room_of_the_next_ones(tmp_path: Path) -> None:
    answers: queue.SimpleQueue[NodeEvent] = queue.SimpleQueue()
    store = SmallStore(tmp_path)
    saving = PartWriter(store, answers.put)

    def saved(clock: int) -> list[bool]:
        name = CutId(clock, 1)
        for partition in range(2):
            saving.ask(SavePart(name, partition, cut_of(name, partition)))
        found = (answers.get(timeout=120.0) for _ in range(2))
        return [isinstance(each, PartSaved) and isinstance(each.outcome, Saved) for each in found]

    store.room = 10**9
    part_bytes = write(store, CutId(1, 1)).parts[0].bytes
    used = sum(store.list("").values())
    store.room = used + 3 * part_bytes // 2  # something else takes the rest
    assert [saved(clock) for clock in (2, 3)] == [[True, False]] * 2
    assert len(store.list("clock-3-1")) == 1 and not store.list("clock-2-1"), "of the last one alone"
    store.room = used + 5 * part_bytes // 2  # now it fits, but not beside what is left of the last one
    assert saved(4) == [True, True]
    saving.stop()
    assert sorted(store.list("clock-1-1")) == sorted(
        f"clock-1-1/{file}" for file in ("manifest.json", "part-0.safetensors", "part-1.safetensors")
    )


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


def test_a_restart_at_the_start_is_refused_once_its_place_shows_a_checkpoint(tmp_path: Path) -> None:
    """As when a file system is mounted just after the restart was decided."""
    spec = RunSpec("run", from_values({**JOB, "checkpoint": {"path": str(tmp_path / "saved")}}), restarts=1)
    job = spec.job(spec.build())
    assert resumed(spec, job, IDENTITY, pytest.fail) is None
    write(FolderStore(tmp_path / "saved"), CutId(7, 3))
    with pytest.raises(StoreError, match="saved holds a checkpoint of clock 7, expected none"):
        resumed(spec, job, IDENTITY, pytest.fail)


def test_nothing_to_resume_from_is_an_error_of_the_place(tmp_path: Path) -> None:
    """A restart tries again then: the run has found it there when it was asked for."""
    spec = RunSpec("run", from_values(JOB), resume=str(tmp_path / "saved"))
    with pytest.raises(NotThereError, match="saved holds no whole checkpoint"):
        resumed(spec, spec.job(spec.build()), IDENTITY, pytest.fail)
