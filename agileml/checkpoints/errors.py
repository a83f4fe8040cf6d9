"""Errors of checkpoints. The text is one sentence that names the folder or object."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint cannot be written, read or used."""


class StoreError(CheckpointError):
    """The disk or the service refused; earlier checkpoints are still whole."""


class NotThereError(StoreError):
    """There is no file of that name, or no longer."""


class DamagedError(CheckpointError):
    """The bytes that were read are not those that were written."""
