"""Keeps SIGTERM away from Ray's core while this process becomes a driver.

The core installs a handler of its own, which prints a stack trace and aborts the process. Python's handlers lie below
it until they are installed again, so a job that was stopped in this moment ended with that trace in its log.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_sigterm() -> Iterator[None]:
    """A SIGTERM that comes meanwhile waits, and then finds the handler that was there before. Outside the main thread,
    which alone may set handlers, this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        if handler is not None:  # else it was not set from Python, and cannot be
            signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
