"""A pool of forked processes: results in order, and no process is left after an interruption or a kill."""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

PR_SET_PDEATHSIG = 1
T = TypeVar("T")
R = TypeVar("R")

_work: Callable[[Any], Any] | None = None  # in a process of a pool: what it does


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold SIGINT back until the end. Processes and threads that are started within never get it.

    The mask is this thread's alone. Where another thread takes the signal, Python still interrupts the main thread,
    so that thread's handler only notes it here.
    """
    is_main = threading.current_thread() is threading.main_thread()
    interrupted: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupted.append(number)) if is_main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if is_main:
            signal.signal(signal.SIGINT, handler)
        if interrupted:
            signal.raise_signal(signal.SIGINT)


def _begin(parent: int, work: Callable[[Any], Any]) -> None:
    """Begin a process, whose work is its own pool's: a global set before the fork would be that of two threads' pools.

    It ends when `parent` does, however that is: it would wait for work for ever, as it has both ends of the pipe that
    work comes through.
    """
    global _work
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
    _work = work


def _call(item: Any) -> Any:
    assert _work is not None
    return _work(item)


class Pool:
    """`map` over processes; with one process or one item in the caller's. A context manager."""

    def __init__(self, processes: int) -> None:
        assert processes >= 1
        self._processes = processes
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> Pool:
        return self

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Results in the order of `items`. `work` is inherited by fork, not pickled; items and results are."""
        if self._processes == 1 or len(items) < 2:
            yield from map(work, items)
            return
        context = mp.get_context("fork")
        # An interruption in the middle would leave a process that is in no list and is never ended.
        with _uninterrupted():
            self._executor = ProcessPoolExecutor(
                self._processes, mp_context=context, initializer=_begin, initargs=(os.getpid(), work)
            )
            results = self._executor.map(_call, items)
        yield from results
        self._executor.shutdown()
        self._executor = None

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor is None:
            return
        for process in list((self._executor._processes or {}).values()):
            process.kill()
        self._executor.shutdown(wait=True, cancel_futures=True)
