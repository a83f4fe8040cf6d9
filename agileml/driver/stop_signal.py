"""SIGTERM ends a run with its next cut, a checkpoint and a summary; a second SIGTERM ends it at once.

`proteus stop` and Ray's job server send it.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from agileml.core.protocol.inputs import Stop

# A run that reaches no cut within this ends with the one before it.
LONGEST_S = 600.0


class StopSignal:
    """A context manager around code that SIGTERM must not interrupt. Outside the main thread it catches nothing.

    Ray installs a handler of its own when a driver connects; `arm` installs this one again.
    """

    def __init__(self) -> None:
        self._asked_s: float | None = None
        self._is_taken = False
        self._before: Any = None

    def __enter__(self) -> Self:
        before = signal.getsignal(signal.SIGTERM)
        self._before = signal.SIG_DFL if before is None else before
        self.arm()
        return self

    def arm(self) -> None:
        """Catch SIGTERM from now on."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._ask)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked_s is not None:
            raise SystemExit(128 + number)
        self._asked_s = time.time()

    def taken(self) -> Stop | None:
        """The `Stop` for the controller, once after SIGTERM; otherwise None."""
        if self._asked_s is None or self._is_taken:
            return None
        self._is_taken = True
        return Stop(self._asked_s + LONGEST_S)
