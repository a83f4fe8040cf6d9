"""Folders that are closed to this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534


@contextmanager
def without_rights() -> Iterator[None]:
    """Root may enter every folder, so for a moment this process is somebody else."""
    before = os.geteuid()
    if not before:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)
