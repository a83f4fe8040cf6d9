"""The two heuristics that ZipLine is measured against: Algorithm 1 and FullGridScan (Zhao et al., section IV).

`end_times`: int64 nanoseconds, (n, R), each row ascending; it is not checked.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from straggler.elasticbsp import Barrier

Times = npt.NDArray[np.int64]


def grid_scan(end_times: npt.ArrayLike) -> Barrier:
    """Algorithm 1 (a heuristic): the worker with the earliest first time is the base; O(R n log R)."""
    times = np.asarray(end_times, dtype=np.int64)
    base = int(np.argmin(times[:, 0]))
    return _grid(times, base, base + 1)


def full_grid_scan(end_times: npt.ArrayLike) -> Barrier:
    """FullGridScan of section IV (a heuristic): every worker in turn as the base; O(R n^2 log R)."""
    times = np.asarray(end_times, dtype=np.int64)
    return _grid(times, 0, len(times))


@njit(cache=True)
def _nearest(row: Times, time: int) -> int:
    """Index of the nearest time of a row; the earlier one of two equally near."""
    after = np.searchsorted(row, time)
    if after == len(row) or (after > 0 and time - row[after - 1] <= row[after] - time):
        value = row[after - 1]
        return int(np.searchsorted(row, value))
    return int(after)


@njit(cache=True)
def _grid_best(times: Times, first_base: int, stop_base: int) -> tuple[int, int]:
    """(base, column) of the best set; the first found wins ties, as printed."""
    best_wait = np.int64(-1)
    best_base, best_column = 0, 0
    for base in range(first_base, stop_base):
        for column in range(times.shape[1]):
            time = times[base, column]
            low = high = time
            for row in range(times.shape[0]):
                if row != base:
                    near = times[row, _nearest(times[row], time)]
                    low = min(low, near)
                    high = max(high, near)
            if best_wait < 0 or high - low < best_wait:
                best_wait = high - low
                best_base, best_column = base, column
    return best_base, best_column


def _grid(times: Times, first_base: int, stop_base: int) -> Barrier:
    base, column = _grid_best(times, first_base, stop_base)
    indices = np.array([_nearest(row, times[base, column]) for row in times], dtype=np.int64)
    indices[base] = column
    chosen = times[np.arange(len(times)), indices]
    return Barrier(indices, int(chosen.max()), int(chosen.max() - chosen.min()))
