"""A run beside the user's own `ray.init()`: in a process of its own, because Ray has one cluster a process.

The user's process sends the run as a pickle through a pipe that only the two have, and answers the calls of its
callbacks; what the run returns or raises comes back. Signals that reach the user's process are passed on.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from agileml.application import Application, Settings
from agileml.apps import build
from agileml.config.job import JobConfig
from agileml.driver.stop_signal import SIGNALS
from agileml.errors import RunError
from agileml.events.run import MembershipChanged
from agileml.runs.callbacks import Callback, CallbackError, failure_of
from agileml.runs.history import ClockRow
from agileml.session.result import Result

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Called:
    """A callback of the user's is called: its number among them, the method, the arguments."""

    number: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Answered:
    """What the callback returned; `failed`: the sentence about an exception of its."""

    reason: str | None
    failed: str | None = None


@dataclass(frozen=True)
class Returned:
    """The end of the run. `settings`: those of its application, which stays where it is."""

    result: Result
    settings: Settings


@dataclass(frozen=True)
class Raised:
    """The run raised."""

    error: BaseException


class CallbackElsewhere(Callback):
    """A callback of the user's, called in the user's process. Its end comes with the result."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection, self._number = connection, number

    def on_start(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._call("on_start", folder, config)

    def on_clock(self, row: ClockRow) -> str | None:
        return self._call("on_clock", row)

    def on_evaluate(self, clock: int, metrics: Mapping[str, float]) -> str | None:
        return self._call("on_evaluate", clock, metrics)

    def on_change(self, change: MembershipChanged) -> str | None:
        return self._call("on_change", change)

    def _call(self, method: str, *arguments: Any) -> str | None:
        _send(self._connection, Called(self._number, method, arguments))
        answer: Answered = _received(self._connection)
        if answer.failed is not None:
            raise CallbackError(answer.failed)
        return answer.reason


def is_ray_taken() -> bool:
    """True when this process is connected to a Ray cluster of the user's."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def run_beside(
    config: JobConfig,
    application: Application | None,
    callbacks: Sequence[Callback],
    **options: Any,
) -> Result:
    """`session.run` in another process. Raises what it raises, and RunError when that process ends without a word."""
    ours, theirs = Pipe()
    command = f"from agileml.session.beside import serve; serve({theirs.fileno()})"
    # A session of its own: Ctrl-C reaches this process alone, which passes it on once.
    child = subprocess.Popen(
        [sys.executable, "-c", command],
        pass_fds=[theirs.fileno()],
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    theirs.close()
    with ours, _signals_go_to(child):
        try:
            _send(ours, (config, application, len(callbacks), options))
            while isinstance(message := _received(ours), Called):
                _send(ours, _answered(callbacks[message.number], message))
        except (EOFError, ConnectionError):
            raise RunError(f"the run's process ended with exit code {child.wait()}") from None
        except BaseException:
            child.kill()  # it cannot go on without us
            raise
        finally:
            child.wait()
    if isinstance(message, Raised):
        raise message.error
    assert isinstance(message, Returned)
    settings = message.settings
    own = application.with_settings(settings) if application else build(config.application, settings)
    result = replace(message.result, application=own)
    for callback in callbacks:
        callback.on_end(result)
    return result


def _answered(callback: Callback, call: Called) -> Answered:
    try:
        return Answered(getattr(callback, call.method)(*call.arguments))
    except Exception as error:
        return Answered(None, failure_of(callback, error))


@contextmanager
def _signals_go_to(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass the signals that end a run on to the process that has it. Outside the main thread there are none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _send(connection: Connection, message: object) -> None:
    from ray import cloudpickle  # functions and classes of a script or a notebook travel by value

    connection.send_bytes(cloudpickle.dumps(message))


def _received(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())  # noqa: S301  our own parent or child


# -- the run's process ----------------------------------------------------------------------------------------


def serve(descriptor: int) -> None:
    """Run what the user's process sends, and send back how it ended."""
    from agileml.session.session import run

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with Connection(descriptor) as connection:
        try:
            config, application, count, options = _received(connection)
            callbacks = [CallbackElsewhere(connection, number) for number in range(count)]
            result = run(config, application, callbacks=callbacks, **options)
            assert result.application is not None, "every run has one"
            end: Returned | Raised = Returned(replace(result, application=None), result.application.settings)
        except BaseException as error:
            end = Raised(error)
        try:
            _send(connection, end)
        except (pickle.PicklingError, TypeError, AttributeError):
            assert isinstance(end, Raised), end
            told = "".join(traceback.format_exception(end.error))
            _send(connection, Raised(RunError(f"{type(end.error).__name__}: {end.error}", told)))
