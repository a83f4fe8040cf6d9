"""Folders of runs on file systems that cannot all that a local disk can: shares of other computers, most often."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from agileml.checkpoints.store import FolderStore
from agileml.runs.folder import RunFolder, StorageError
from tests.agileml.runs.model_file import model_sha256


def test_a_share_whose_files_belong_to_another_user_takes_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As VirtualBox and CIFS mount them: this user may write all files, and change the mode of none."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    folder = RunFolder.create(tmp_path / "run", "mf")
    monkeypatch.setattr(os, "chmod", refused)
    digest = folder.write_model({"t": np.arange(4.0)})
    folder.events.close()
    assert model_sha256(folder.path / "model.safetensors") == digest
    assert sorted(os.listdir(folder.path)) == ["events.jsonl", "model.safetensors"]


def folders_sync_with(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says when a folder is synced; files are as ever."""
    real = os.fsync

    def fsync(file: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(number, os.strerror(number))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_file_system_that_cannot_sync_folders_takes_runs_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders_sync_with(errno.EINVAL, monkeypatch)
    folder = RunFolder.create(tmp_path / "run", "mf")
    folder.write_config("clocks: 1")
    folder.events.close()
    assert (folder.path / "config.yaml").read_text() == "clocks: 1"
    store = FolderStore(tmp_path / "checkpoints")
    store.put("one/part", [b"abc"], 3)
    assert store.list("") == {"one/part": 3}


def test_a_disk_that_fails_to_sync_a_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path / "run", "mf")
    folders_sync_with(errno.EIO, monkeypatch)
    with pytest.raises(StorageError, match=r"config.yaml could not be written: Input/output error"):
        folder.write_config("clocks: 1")
    folder.events.close()
