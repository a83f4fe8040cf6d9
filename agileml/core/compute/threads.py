"""One thread for BLAS and numba, so that every machine adds in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import threadpoolctl


@contextmanager
def single_threaded() -> Iterator[None]:
    """Limit BLAS and OpenMP (of this process) and numba (of the calling thread) to one thread inside the block."""
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        with threadpoolctl.threadpool_limits(1):
            yield
    finally:
        numba.set_num_threads(before)
