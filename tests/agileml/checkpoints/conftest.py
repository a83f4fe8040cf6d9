"""A store of checkpoints in a folder of the test."""

from pathlib import Path

import pytest

from agileml.checkpoints.checkpoint import CheckpointStore
from agileml.checkpoints.opening import open_store


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return open_store(str(tmp_path / "checkpoints"))
