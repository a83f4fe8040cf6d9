"""What can go wrong with checkpoints: each is one sentence that names the folder or object."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint cannot be written, read or used."""


class StoreError(CheckpointError):
    """The disk or the service refused; what was whole before is still whole."""


class NotThereError(StoreError):
    """There is nothing of that name (any more)."""


class DamagedError(CheckpointError):
    """What was read is not what was written."""
