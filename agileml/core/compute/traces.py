"""Tracebacks of the user's code, as the user needs them."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from agileml.application import without_secrets

OURS = str(Path(__file__).parents[2])
# Code that is not the user's: this package, installed ones, the standard library.
INSTALLED = (
    OURS,
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    "<frozen",
)
CYTHON = (".pyx", ".pxd")  # a compiled package names its sources as they lay when it was built


def user_trace(error: BaseException) -> str:
    """The traceback of an exception without the frames of this package that come first.

    If it was raised in a process of a pool, the traceback there. It ends up in logs, so addresses in it show no secret.
    """
    if isinstance(there := getattr(error.__cause__, "tb", None), str):
        return without_secrets(there.strip().strip('"').strip())
    shown = traceback.TracebackException.from_exception(error)
    foreign = [number for number, frame in enumerate(shown.stack) if not frame.filename.startswith(OURS)]
    if foreign:
        shown.stack = traceback.StackSummary.from_list(shown.stack[foreign[0] :])
    return without_secrets("".join(shown.format()))


def is_in_user_code(error: BaseException) -> bool:
    """Whether a line of the user's own files was being run: otherwise a traceback tells the user nothing."""
    return any(is_of_user(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def is_of_user(file: str) -> bool:
    """Whether a file of source code is the user's own."""
    return not file.startswith(INSTALLED) and not file.endswith(CYTHON)
