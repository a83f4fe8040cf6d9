"""One thread for BLAS and numba: the same sums in the same order on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import threadpoolctl


@contextmanager
def single_threaded() -> Iterator[None]:
    """Pin BLAS and OpenMP (of this process) and numba (of the calling thread) to one thread meanwhile."""
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        with threadpoolctl.threadpool_limits(1):
            yield
    finally:
        numba.set_num_threads(before)
