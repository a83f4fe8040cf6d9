"""Errors that end a run without a result."""

from __future__ import annotations

HEAD_LOST_CODE = 5  # exit code of a run whose cluster lost its head


class RunError(Exception):
    """A run cannot go on. The text says why; `trace` is the traceback of user code that failed, if any."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace


class HeadLostError(RunError):
    """The cluster's head is gone, and the run's records with it: there is no controller left to ask or stop."""
