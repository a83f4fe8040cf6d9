"""A run beside the user's own `ray.init()`: in a process of its own, because Ray has one cluster a process.

The user's process sends the run as a pickle through a pipe that only the two have, and answers the calls of its
callbacks; what the run returns or raises comes back. Signals that reach the user's process are passed on.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from agileml.application import Application, Settings
from agileml.apps import build
from agileml.config.job import JobConfig
from agileml.driver.stop_signal import SIGNALS
from agileml.errors import RunError
from agileml.runs.callbacks import Callback, CallbackError, failure_of, reason_of
from agileml.session.result import Result

ASKED = ("on_clock", "on_evaluate", "on_change")  # methods whose answer may end the run


@dataclass(frozen=True)
class Called:
    """The run calls a callback of the user's: its number among them, method, arguments; `call` counts the calls."""

    number: int
    method: str
    arguments: tuple[Any, ...]
    call: int = 0


@dataclass(frozen=True)
class Answered:
    """The callback's return value; `failed`: the sentence about its exception, if it raised one. `call`: as called."""

    reason: str | None
    failed: str | None = None
    call: int = 0


@dataclass(frozen=True)
class Returned:
    """The end of the run. `settings`: those of its application, which stays where it is."""

    result: Result
    settings: Settings


@dataclass(frozen=True)
class Raised:
    """The run ended with an exception."""

    error: BaseException


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
    """`session.run` in another process. Raises what it raises, and RunError if that process ends without a result."""
    ours, theirs = Pipe()
    command = f"from agileml.session.beside_process import serve; serve({theirs.fileno()})"
    # A session of its own: Ctrl-C reaches this process alone, which passes it on once.
    child = subprocess.Popen(
        [sys.executable, "-c", command],
        pass_fds=[theirs.fileno()],
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    theirs.close()
    failed: set[int] = set()  # callbacks that are called no more
    with ours, _signals_go_to(child):
        try:
            send(ours, (config, application, len(callbacks), options))
            while isinstance(message := received(ours), Called):
                answer = _answered(callbacks[message.number], message)
                failed |= {message.number} if answer.failed is not None else set()
                with suppress(ConnectionError):  # a signal has ended it meanwhile: it has sent why
                    send(ours, replace(answer, call=message.call))
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
    for number, callback in enumerate(callbacks):
        ended = None if number in failed else _answered(callback, Called(number, "on_end", (result,)))
        if ended is not None and ended.failed is not None:
            print(f"proteus: {ended.failed}", file=sys.stderr)
    return result


def _answered(callback: Callback, call: Called) -> Answered:
    try:
        returned = getattr(callback, call.method)(*call.arguments)
        return Answered(reason_of(callback, returned) if call.method in ASKED else None)
    except CallbackError as error:
        return Answered(None, str(error))
    except Exception as error:
        return Answered(None, failure_of(callback, error))


@contextmanager
def _signals_go_to(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass the signals that end a run on to the process that has it. Outside the main thread it does nothing."""
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


def send(connection: Connection, message: object) -> None:
    """Send to the other process."""
    from ray import cloudpickle  # functions and classes of a script or a notebook travel by value

    connection.send_bytes(cloudpickle.dumps(message))


def received(connection: Connection) -> Any:
    """The next message of the other process. Raises EOFError."""
    return pickle.loads(connection.recv_bytes())  # noqa: S301  our own parent or child
