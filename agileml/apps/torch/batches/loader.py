"""Batches from loader processes, fetched ahead: the items of a unit's next clock are known before it begins.

A request is a batch by its item numbers and the seed of its random numbers, so it does not matter which process makes
it, nor when. Processes are started afresh (not forked: a machine has threads) and load the data set once each. They end
with the process that started them.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.util import get_temp_dir
from typing import Any

import torch

from agileml.application import Array, InputError

Take = Callable[[Array], Any]  # item numbers -> a batch
NOT_FOUND = (ImportError, AttributeError, pickle.PickleError)  # raised for a name that is not there
OWN_MODULE = (
    "a loader process does not run the script: where it lacks a class or function of the script, expected that in a "
    "module of its own, which the script imports"
)

DIED = (
    "model.loader_processes: a loader process died, of its data set's code or for want of memory; expected one that "
    "lives (dmesg names what the kernel killed)"
)
NO_ROOM = (
    "model.loader_processes: a batch has no room in /dev/shm, through which loader processes hand it on; expected more "
    "there, as by docker run --shm-size=2g, or loader_processes: 0"
)


@dataclass(frozen=True)
class Request:
    """The batches of some units of a clock, one for each array of item numbers, with random numbers from `seed` on.

    `units` names the units, so that a request is known again.
    """

    clock: int
    units: tuple[int, ...]
    numbers: tuple[Array, ...]
    seed: int

    @property
    def items(self) -> int:
        """Items of all its batches."""
        return sum(map(len, self.numbers))


class Loader:
    """Makes the batches of requests, in this process, or in others ahead of time."""

    def __init__(self, take: Callable[[], Take], processes: int, seeded: Callable[[int], Any]) -> None:
        """take: makes the function that makes a batch; it is called in each process, and must be picklable by
        cloudpickle. seeded: the context in which random numbers come from a seed."""
        self._make, self._seeded = take, seeded
        self._take: Take | None = None
        self._pool: ProcessPoolExecutor | None = None
        self._processes = processes
        self._ahead: dict[tuple[int, tuple[int, ...]], Future[list[Any]]] = {}

    def start(self) -> None:
        """Start the processes, and wait until they have the data. Without any this does nothing. Raises InputError."""
        if not self._processes or self._pool is not None:
            return
        from ray import cloudpickle  # the one that the application came with

        pickled = cloudpickle.dumps((self._make, self._seeded))
        self._pool = ProcessPoolExecutor(
            self._processes, get_context("spawn"), _begin, (pickled, os.getpid(), list(sys.path))
        )
        with _without_main():
            ready = [self._pool.submit(_ready) for _ in range(self._processes)]
        for each in ready:
            try:
                self._result(each)
            except InputError:
                raise
            except Exception as error:
                expected = (
                    OWN_MODULE if isinstance(error, NOT_FOUND) else "expected one that loads there as here"
                )
                raise InputError(
                    "model.loader_processes: a loader process cannot load the data set "
                    f"({type(error).__name__}: {error}); {expected}"
                ) from error

    def batches(self, request: Request) -> list[Any]:
        """The batches of a request, which may have been fetched already. Raises what the data set raises."""
        self.start()
        if self._pool is None:
            if self._take is None:
                self._take = self._make()
            return _made(self._take, self._seeded, request)
        found = self._ahead.pop((request.clock, request.units), None)
        if found is None:
            found = self._submitted(request)
        # Items of other clocks were fetched for units that others have now, or before a rollback.
        for key in [key for key in self._ahead if not request.clock <= key[0] <= request.clock + 1]:
            self._ahead.pop(key).cancel()
        return self._result(found)

    def fetch_ahead(self, request: Request) -> None:
        """Have the batches of a request of the next clock made meanwhile. Without processes this does nothing."""
        if self._pool is not None and (request.clock, request.units) not in self._ahead:
            self._ahead[request.clock, request.units] = self._submitted(request)

    def stop(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _submitted(self, request: Request) -> Future[list[Any]]:
        assert self._pool is not None
        try:
            return self._pool.submit(_fetch, request)
        except BrokenProcessPool:  # one died while nobody waited for its batch
            raise InputError(DIED) from None

    @staticmethod
    def _result(future: Future[Any]) -> Any:
        try:
            return future.result()
        except BrokenProcessPool:
            raise InputError(DIED) from None
        except pickle.PicklingError as error:
            raise InputError(
                f"model.loader_processes: what a loader process made cannot be sent ({error}); {OWN_MODULE}"
            ) from error
        except RuntimeError as error:
            if "unable to allocate shared memory" not in str(error):
                raise
            raise InputError(NO_ROOM) from error


def _made(take: Take, seeded: Callable[[int], Any], request: Request) -> list[Any]:
    with seeded(request.seed):
        return [take(numbers) for numbers in request.numbers]


# -- in a loader process --------------------------------------------------------------------------------------

_here: tuple[Take, Callable[[int], Any]] | Exception | None = (
    None  # an exception: it cannot load the data set
)


def _begin(pickled: bytes, parent: int, path: list[str]) -> None:
    global _here
    sys.path[:] = path
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    from ray import cloudpickle

    try:
        make, seeded = cloudpickle.loads(pickled)
        _here = make(), seeded
    except Exception as error:  # for `_ready`: the pool itself would only say that the process is gone
        _here = error


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(get_temp_dir(), ignore_errors=True)  # with the socket over which its tensors went
    os._exit(1)


def _ready() -> None:
    """Raises what kept this process from loading the data set."""
    if isinstance(_here, Exception):
        raise _here


def _fetch(request: Request) -> list[Any]:
    _ready()
    assert isinstance(_here, tuple), "`_begin` has set it"
    return _made(*_here, request)


@contextmanager
def _without_main() -> Iterator[None]:
    """Started processes import the main module, which may be a script that trains: show them an empty one."""
    before = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = before
