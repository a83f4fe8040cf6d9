"""Training nets beside the job, at the lowest priority and on at most half of the cores (Chen et al., 4.3)."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import Future, ProcessPoolExecutor

from threadpoolctl import threadpool_limits

from straggler.speed.narx import Floats, Net, train


class Background:
    """A `Trainer` of processes, not threads: a thread at low priority would hold the interpreter's lock.

    Nets are trained in turn, first come, first served. Use it as a context manager, or `close` it.
    """

    def __init__(self, processes: int | None = None) -> None:
        most = max(1, len(os.sched_getaffinity(0)) // 2)
        self._pool = ProcessPoolExecutor(
            max_workers=min(processes or most, most),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_step_back,
        )

    def submit(self, starts: Floats, inputs: Floats, changes: Floats, hold: float) -> Future[Net]:
        return self._pool.submit(train, starts.copy(), inputs, changes, hold)

    def close(self) -> None:
        """Drop what is not being trained yet and end the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _step_back() -> None:
    threadpool_limits(limits=1)  # for the process' life
    os.nice(19)
