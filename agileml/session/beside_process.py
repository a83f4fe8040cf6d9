"""The process of a run beside the user's Ray: the other end of `beside.run_beside`."""

from __future__ import annotations

import ctypes
import itertools
import pickle
import signal
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from agileml.errors import RunError
from agileml.events.run import MembershipChanged
from agileml.runs.callbacks import Callback, CallbackError
from agileml.runs.history import ClockRow
from agileml.session.beside import Answered, Called, Raised, Returned, received, send
from agileml.session.session import run

PR_SET_PDEATHSIG = 1


class CallbackElsewhere(Callback):
    """A callback of the user's, called in the user's process. Its end comes with the result."""

    def __init__(self, connection: Connection, number: int, calls: Iterator[int]) -> None:
        """calls: counts those of all callbacks of the connection."""
        self._connection, self._number, self._calls = connection, number, calls

    def on_start(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._call("on_start", folder, config)

    def on_clock(self, row: ClockRow) -> str | None:
        return self._call("on_clock", row)

    def on_evaluate(self, clock: int, metrics: Mapping[str, float]) -> str | None:
        return self._call("on_evaluate", clock, metrics)

    def on_change(self, change: MembershipChanged) -> str | None:
        return self._call("on_change", change)

    def on_fail(self, reason: str) -> None:
        self._call("on_fail", reason)

    def _call(self, method: str, *arguments: Any) -> str | None:
        call = next(self._calls)
        send(self._connection, Called(self._number, method, arguments, call))
        answer: Answered = received(self._connection)
        while answer.call != call:  # of a call that a signal interrupted
            answer = received(self._connection)
        if answer.failed is not None:
            raise CallbackError(answer.failed)
        return answer.reason


def serve(descriptor: int) -> None:
    """Run the job that the user's process sends, and send back its result or error."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with Connection(descriptor) as connection:
        try:
            config, application, count, options = received(connection)
            calls = itertools.count()
            callbacks = [CallbackElsewhere(connection, number, calls) for number in range(count)]
            result = run(config, application, callbacks=callbacks, **options)
            assert result.application is not None, "every run has one"
            end: Returned | Raised = Returned(replace(result, application=None), result.application.settings)
        except BaseException as error:
            end = Raised(error)
        try:
            send(connection, end)
        except (pickle.PicklingError, TypeError, AttributeError):
            assert isinstance(end, Raised), end
            trace = "".join(traceback.format_exception(end.error))
            send(connection, Raised(RunError(f"{type(end.error).__name__}: {end.error}", trace)))
