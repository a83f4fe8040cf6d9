"""Folders of runs on file systems that cannot all that a local disk can: shares of other computers, most often."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from agileml.runs.folder import RunFolder
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
