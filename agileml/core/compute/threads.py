"""The number of threads of BLAS and numba: one where every machine must add in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numba
import threadpoolctl


def single_threaded() -> AbstractContextManager[None]:
    """One thread inside the block."""
    return limited_threads(1)


def set_threads(count: int) -> None:
    """Limit BLAS and OpenMP (of this process) and numba (of the calling thread) to so many threads from now on."""
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))
    threadpoolctl.threadpool_limits(count)


@contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """Limit BLAS and OpenMP (of this process) and numba (of the calling thread) to so many threads inside the block."""
    before = numba.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    try:
        with threadpoolctl.threadpool_limits(threads):
            yield
    finally:
        numba.set_num_threads(before)
