"""Tracebacks of the user's code, as the user needs them."""

from __future__ import annotations

import traceback
from pathlib import Path

OURS = str(Path(__file__).parents[2])


def user_trace(error: BaseException) -> str:
    """The traceback of an exception without the frames of this package that come first.

    If it was raised in a process of a pool, the traceback there.
    """
    if isinstance(there := getattr(error.__cause__, "tb", None), str):
        return there.strip().strip('"').strip()
    shown = traceback.TracebackException.from_exception(error)
    foreign = [number for number, frame in enumerate(shown.stack) if not frame.filename.startswith(OURS)]
    if foreign:
        shown.stack = traceback.StackSummary.from_list(shown.stack[foreign[0] :])
    return "".join(shown.format())
