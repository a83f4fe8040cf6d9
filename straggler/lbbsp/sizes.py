"""LB-BSP: batch sizes that let all workers end at the same time (Chen et al., sections 3 and 4).

minimise max_i t_i(x_i) subject to sum x_i = X (equation 3), in whole samples and exactly: rounding the
real solution by largest remainder is not optimal. Among the best, the sizes are those of the X earliest
samples (ties: the lower worker), so where no two samples end together the second-latest worker is as early as can be,
too, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from straggler.lbbsp.apportion import (
    LARGEST,
    LAST,
    SMALLEST,
    Counts,
    Floats,
    Tree,
    empty_trees,
    plant,
    refresh,
    settle,
    start,
)


def cpu_batch_sizes(
    samples_per_s: npt.ArrayLike,
    global_batch: int,
    minimum: int = 1,
    *,
    maximum: int | None = None,
    unit: int = 1,
) -> Counts:
    """Batch sizes for workers whose time is x / v (section 3.2), int64 of shape (n,), summing to `global_batch`.

    `maximum`: of each worker; None: any. `unit`: sizes are multiples of it (the samples of one unit of a clock), as is
    `global_batch`. Raises ValueError for speeds that are NaN, infinite or negative, or a batch of less than n x minimum
    or more than n x maximum.
    """
    return allocate_cpu(samples_per_s, global_batch, minimum, maximum=maximum, unit=unit).sizes * unit


def gpu_batch_sizes(
    slope_s: npt.ArrayLike,
    intercept_s: npt.ArrayLike,
    comm_s: npt.ArrayLike,
    saturation: npt.ArrayLike,
    memory_limit: npt.ArrayLike,
    global_batch: int,
    minimum: int = 1,
    *,
    unit: int = 1,
) -> Counts:
    """Batch sizes for workers whose time is m max(x, x_s) + b + t_m up to x_o samples (equation 5).

    `slope_s` m, `intercept_s` b, `comm_s` t_m: seconds, shape (n,); `saturation` x_s and `memory_limit` x_o:
    samples. A worker without a sample takes no time (`minimum=0`). Every worker gets at least x_s unless the
    batch is too small to saturate them all; then sizes are in proportion to x_s. Raises ValueError where no
    sizes exist, with the number of samples that are short.
    """
    n = len(np.atleast_1d(np.asarray(slope_s)))
    columns = {"slope_s": slope_s, "intercept_s": intercept_s, "comm_s": comm_s}
    numbers = [_numbers(values, name, n) for name, values in columns.items()]
    knee, limit = _integers(saturation, "saturation", n), _integers(memory_limit, "memory_limit", n)
    total, least = _in_units(global_batch, minimum, unit)
    law = np.stack([*numbers, np.full(n, float(unit))], axis=1)
    if (knee > limit).any():
        i = int(np.argmax(knee > limit))
        raise ValueError(f"saturation[{i}] is {knee[i]}; expected at most memory_limit[{i}], {limit[i]}")
    high = limit // unit
    if (high < least).any():
        i = int(np.argmax(high < least))
        raise ValueError(f"memory_limit[{i}] is {limit[i]}; expected room for a minimum of {least * unit}")
    if int(high.sum()) < total:
        raise ValueError(
            f"global_batch is {global_batch}, but memory_limit (shape {limit.shape}) allows "
            f"{int(high.sum()) * unit}: {global_batch - int(high.sum()) * unit} samples short"
        )
    _check_minimum(n, total, least, unit)
    if least == 0:  # a worker that is slow even for one sample may be left out
        return _solved(law, knee, np.zeros(n, dtype=np.int64), high, total).sizes * unit
    saturated = np.maximum(least, np.minimum(knee // unit, high))
    if int(saturated.sum()) <= total:
        return _solved(law, knee, saturated, high, total).sizes * unit
    low = np.full(n, least, dtype=np.int64)
    return _solved(saturated[:, None].astype(np.float64), knee, low, saturated, total).sizes * unit


@dataclass
class Allocation:
    """A solved allocation that can be solved again after one change.

    `sizes`: units per worker, int64 (n,), summing to `total`. The rest is the solver's state: its time law
    (see `apportion`), the bounds, and the two tournaments.
    """

    sizes: Counts
    total: int
    law: Floats
    knee: Counts
    low: Counts
    high: Counts
    trees: Tree
    times: Floats

    def settle(self) -> None:
        """Move from any sizes within the bounds to the optimum."""
        settle(self.sizes, self.law, self.knee, self.low, self.high, self.total, self.trees, self.times)

    def restart(self) -> None:
        """Solve from scratch."""
        start(self.sizes, self.law, self.knee, self.low, self.high, self.total)
        plant(self.sizes, self.law, self.knee, self.low, self.high, self.trees, self.times)
        self.settle()


def allocate_cpu(
    samples_per_s: npt.ArrayLike,
    global_batch: int,
    minimum: int = 1,
    *,
    maximum: int | None = None,
    unit: int = 1,
) -> Allocation:
    """`cpu_batch_sizes` as a state for `resolve`; its sizes count units."""
    total, least = _in_units(global_batch, minimum, unit)
    speeds = _speeds(samples_per_s, least)
    n = len(speeds)
    _check_minimum(n, total, least, unit)
    most = total if maximum is None else min(total, maximum // unit)
    if most < least or n * most < total:
        raise ValueError(
            f"maximum is {maximum}; expected at least the minimum, and room for {global_batch} with {n} workers"
        )
    if (moving := int(np.count_nonzero(speeds))) * most < total:  # a worker that stands still never ends
        raise ValueError(
            f"maximum is {maximum}; expected room for {global_batch} with the {moving} of {n} workers that move"
        )
    low, high = np.full(n, least, dtype=np.int64), np.full(n, most, dtype=np.int64)
    return _solved(speeds[:, None], np.zeros(n, dtype=np.int64), low, high, total)


def resolve(state: Allocation, worker: int, speed: float) -> Counts:
    """The sizes after one worker's speed changed, equal to a full solve; `state` is brought up to date. They are its
    own array, which the next call changes: copy what is to stay.

    As many samples move as the worker gains or loses, each in O(log n); where that is more than a full
    solve would cost, it is a full solve. Raises ValueError for an unknown worker or a bad speed.
    """
    n = len(state.sizes)
    if not 0 <= worker < n:
        raise ValueError(f"worker is {worker}; expected 0 to {n - 1}")
    new = _speeds([speed], int(state.low[worker]), name="speed", some_move=False)[0]
    others_are_idle = not state.law[:worker].any() and not state.law[worker + 1 :].any()
    if new == 0 and others_are_idle:
        raise ValueError("speed is 0 and so is every other worker's; expected one that moves")
    if new == 0:
        others = state.law[:, 0] > 0
        others[worker] = False
        if (room := int(state.high[others].sum())) < state.total:
            raise ValueError(
                f"speed is 0, and the others that move have room for {room} units; expected {state.total}"
            )
    before = int(state.sizes[worker])
    last = int(state.trees[LAST, 1])  # the time at which the last worker ends now
    state.law[worker, 0] = new
    if last != worker and state.times[LAST, last] > 0:
        near = min(float(state.sizes[last]) / state.law[last, 0] * new, float(state.high[worker]))
        state.sizes[worker] = max(int(state.low[worker]), int(near))
    if abs(int(state.sizes[worker]) - before) > 64 + n // 16:
        state.restart()
    else:
        refresh(worker, state.sizes, state.law, state.knee, state.low, state.high, state.trees, state.times)
        state.settle()
    return state.sizes


def weighted_mean(gradients: npt.ArrayLike, batch_sizes: npt.ArrayLike) -> Floats:
    """g = sum_i |B_i| g_i / X (equation 8); `gradients` (n, ...): each worker's mean over its samples.

    Every sample weighs the same, as in one big batch; the row of a worker without samples is
    ignored, even if it is NaN.
    """
    sizes = np.asarray(batch_sizes)
    means = np.asarray(gradients, dtype=np.float64)
    if sizes.ndim != 1 or len(sizes) != len(means) or sizes.min() < 0 or sizes.sum() == 0:
        raise ValueError(
            f"batch_sizes has shape {sizes.shape} for gradients of shape {means.shape}; "
            "expected one size of at least 0 for each gradient, and some sample"
        )
    busy = sizes > 0
    return np.tensordot(sizes[busy] / sizes.sum(), means[busy], axes=1)


def _solved(law: Floats, knee: Counts, low: Counts, high: Counts, total: int) -> Allocation:
    law = np.ascontiguousarray(law)
    state = Allocation(low.copy(), total, law, knee, low, high, *empty_trees(len(law)))
    state.restart()
    return state


def _in_units(global_batch: int, minimum: int, unit: int) -> tuple[int, int]:
    if unit < 1 or global_batch < 1 or global_batch % unit or global_batch >= 2**53:
        raise ValueError(
            f"global_batch is {global_batch} in units of {unit}; expected a multiple below 2^53, at least one unit"
        )
    if minimum < 0:
        raise ValueError(f"minimum is {minimum}; expected at least 0")
    return global_batch // unit, -(-minimum // unit)


def _check_minimum(n: int, total: int, least: int, unit: int) -> None:
    if n * least > total:
        raise ValueError(
            f"global_batch is {total * unit}, less than {n} workers x the minimum of {least * unit}: "
            f"{(n * least - total) * unit} samples short"
        )


def _speeds(values: npt.ArrayLike, least: int, name: str = "samples_per_s", some_move: bool = True) -> Floats:
    speeds = np.array(values, dtype=np.float64)
    if speeds.ndim != 1 or len(speeds) == 0:
        raise ValueError(f"{name} has shape {speeds.shape}; expected (n,) with n >= 1")
    good = ((speeds >= SMALLEST) & (speeds <= LARGEST)) | (speeds == 0 if least == 0 else False)
    if not good.all():
        i = int(np.argmin(good))
        wanted = "positive" if least else "non-negative"
        raise ValueError(
            f"{name}[{i}] (shape {speeds.shape}) is {speeds[i]}; expected a {wanted} finite number"
        )
    if some_move and not speeds.any():
        raise ValueError(f"{name} (shape {speeds.shape}) is 0 everywhere; expected a worker that moves")
    return speeds


def _numbers(values: npt.ArrayLike, name: str, n: int) -> Floats:
    numbers = np.array(values, dtype=np.float64)
    if numbers.shape != (n,) or n == 0:
        raise ValueError(f"{name} has shape {numbers.shape}; expected ({max(n, 1)},)")
    good = (numbers == 0) | ((numbers >= SMALLEST) & (numbers <= LARGEST))
    if not good.all():
        i = int(np.argmin(good))
        raise ValueError(f"{name}[{i}] is {numbers[i]}; expected a finite number of seconds of at least 0")
    return numbers


def _integers(values: npt.ArrayLike, name: str, n: int) -> Counts:
    numbers = np.asarray(values)
    if numbers.shape != (n,) or not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(f"{name} has shape {numbers.shape}, dtype {numbers.dtype}; expected integers ({n},)")
    if (numbers < 0).any() or (numbers >= 2**53).any():
        i = int(np.argmax((numbers < 0) | (numbers >= 2**53)))
        raise ValueError(f"{name}[{i}] is {numbers[i]}; expected 0 to 2^53")
    return numbers.astype(np.int64)
