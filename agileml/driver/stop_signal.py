"""SIGTERM, Ctrl-C and SIGHUP end a run with its next cut, a checkpoint, a summary and the bill; the second ends it now.

`proteus stop` and Ray's job server send SIGTERM; a terminal that closes sends SIGHUP. `timeout` and some supervisors
send SIGTERM to the process and to its group, so that it arrives twice at once: the copy counts as the same signal.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from agileml.core.protocol.inputs import Stop

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A run that reaches no cut within this ends with the one before it.
LONGEST_S = 600.0
COPY_S = 1.0  # a SIGTERM that follows another within this is its copy


class StopSignal:
    """A context manager around code that these signals must not interrupt. Outside the main thread it catches nothing.

    Ray installs a handler of its own when a driver connects; `arm` installs this one again. Ctrl-C and SIGHUP stay
    ignored where they are ignored already, as under `nohup`.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._copies_until_s = -math.inf
        self._asked_s: float | None = None
        self._is_signalled = False
        self._is_taken = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if number is signal.SIGTERM or before is not signal.SIG_IGN:
                self._before[number] = signal.SIG_DFL if before is None else before
        self.arm()
        return self

    def arm(self) -> None:
        """Catch the signals from now on."""
        if threading.current_thread() is threading.main_thread():
            for number in self._before:
                signal.signal(number, self._ask)

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, before in self._before.items():
                signal.signal(number, before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        if number == signal.SIGTERM:
            if self._clock_s() < self._copies_until_s:
                return
            self._copies_until_s = self._clock_s() + COPY_S
        if self._is_signalled:
            raise SystemExit(128 + number)
        self._is_signalled = True
        self.ask()

    def ask(self) -> None:
        """Ask the run to stop, as the first signal does; a signal after that is still the first one."""
        if self._asked_s is None:
            self._asked_s = self._clock_s()

    @property
    def is_asked(self) -> bool:
        """True once the run was told to stop."""
        return self._asked_s is not None

    @property
    def is_signalled(self) -> bool:
        """True once a signal told it: the next one ends it at once."""
        return self._is_signalled

    def taken(self, now_s: float) -> Stop | None:
        """The `Stop` for the controller, once after a signal; otherwise None. now_s: as its clock has it, which does
        not follow a host's clock that is set meanwhile."""
        if self._asked_s is None or self._is_taken:
            return None
        self._is_taken = True
        return Stop(now_s - (self._clock_s() - self._asked_s) + LONGEST_S)


def leave_terminal() -> None:
    """Point this process's standard streams to /dev/null where their terminal is gone: writing to it is an error."""
    for number in (0, 1, 2):
        try:
            termios.tcgetattr(number)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                with suppress(OSError):
                    nowhere = os.open(os.devnull, os.O_RDWR)
                    os.dup2(nowhere, number)
                    os.close(nowhere)
