"""The surroundings in which Ray starts and stops: environment variables, signals, sessions and its logger."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType


def put_environment(values: Mapping[str, str | None]) -> None:
    """Set variables of this process; None removes one."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, and put back the old ones on exit."""
    before = {name: os.environ.get(name) for name in values}
    put_environment(values)
    try:
        yield
    finally:
        put_environment(before)


@contextlib.contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C: cleaning up is short, and a second Ctrl-C must not stop it half way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def own_sessions() -> Iterator[None]:
    """Start Ray's processes in sessions of their own.

    `timeout` and supervisors send SIGTERM to our whole process group, and a run needs Ray's processes to end well.
    """
    from ray._private import services

    before = services.ConsolePopen
    services.ConsolePopen = functools.partial(before, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = before


@contextlib.contextmanager
def spare_children() -> Iterator[None]:
    """Let Ctrl-C interrupt this process only: a child that is just being forked must not print a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield
        return
    me = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() == me:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def quiet_ray() -> Iterator[None]:
    """Silence the greetings of Ray for every node."""
    import logging

    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
