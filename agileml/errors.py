"""How a run ends without a result."""

from __future__ import annotations


class RunError(Exception):
    """The text says why the run cannot go on; `trace` is the traceback of the user's code, if that failed."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace


class HeadLostError(RunError):
    """The cluster's head is gone, and the run's records with it: nobody is left whom one could ask, or stop."""
