"""ElasticBSP: supersteps in which every worker makes its own number of iterations (Zhao et al., 2019).

The next R end times of every worker are predicted; ZipLine picks one per worker so that they lie closest
together, and the last of them is the barrier. Times are integer nanoseconds: sums of floats break ties.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from numba import njit

from straggler.lbbsp.sizes import cpu_batch_sizes

Times = npt.NDArray[np.int64]
Objective = Literal["wait", "rate"]

# The price of a superstep's length in `objective="rate"`: a share of all workers' time per BSP superstep.
STALENESS = 0.01


@dataclass(frozen=True)
class Barrier:
    """Where a superstep ends.

    `indices` (n, int64): 0-based position in each worker's row of its last end time in the superstep, so the
    worker makes `indices[p] + 1` iterations. `barrier_ns`: the latest of the chosen times. `wait_ns`: that
    less the earliest, the longest wait of a worker (the paper's d_Z).
    """

    indices: Times
    barrier_ns: int
    wait_ns: int


def zipline(
    end_times: npt.ArrayLike, objective: Objective = "wait", start_ns: int = 0, staleness: float = STALENESS
) -> Barrier:
    """Choose the best barrier for predicted end times; exact, ties go to the earliest barrier.

    `end_times`: integers of shape (n, R), nanoseconds, each row ascending. Every worker works up to its
    latest end time at or before the barrier. Of all barriers T that every worker can reach, `objective`
    takes the least

    - "wait": max - min of the chosen times (section III; Algorithm 2, corrected to test only sets with every worker);
    - "rate": the share of all workers' time that is lost,
      sum_p (T - e_p) / (n (T - start)) + staleness (T - start) / (T_1 - start),
      where e_p is worker p's chosen time and T_1 the earliest barrier (BSP's): the share of the superstep
      spent waiting, plus a price on its length, since longer supersteps leave weights apart for longer.
      The least of the first term alone would always lie near the end of the look-ahead, whatever R is.

    O(n R log(n R)): one sort and one scan. Raises ValueError for bad shapes, rows that do not ascend, a
    `start_ns` that is not before every end time ("rate"), or a span of n x (last - first) >= 2^63 ns.
    """
    times = _checked(end_times)
    if objective not in get_args(Objective):
        raise ValueError(f"objective is {objective!r}; expected 'wait' or 'rate'")
    offsets, workers, origin = _merged(times)
    if objective == "wait":
        barrier = origin + int(_least_wait(offsets, workers, len(times)))
    else:
        if start_ns >= origin:
            raise ValueError(f"start_ns is {start_ns}; expected a time before the first end time, {origin}")
        if origin - start_ns >= 2**62:
            raise ValueError(f"start_ns is {start_ns}; expected less than 2^62 ns before {origin}")
        if not 0 <= staleness < float("inf"):
            raise ValueError(f"staleness is {staleness}; expected a finite number of at least 0")
        barrier = origin + _least_loss(times, offsets, workers, start_ns - origin, staleness)
    return _at(times, barrier)


def predicted_end_times(start_ns: int, intervals_ns: npt.ArrayLike, lookahead: int) -> Times:
    """The next `lookahead` end times of each worker, (n, R): steady at its latest iteration interval."""
    intervals = np.asarray(intervals_ns)
    if intervals.ndim != 1 or len(intervals) == 0 or not np.issubdtype(intervals.dtype, np.integer):
        raise ValueError(f"intervals_ns has shape {intervals.shape}; expected integers of shape (n,), n >= 1")
    if (intervals <= 0).any():
        raise ValueError(f"intervals_ns holds {int(intervals.min())}; expected positive nanoseconds")
    if lookahead < 1:
        raise ValueError(f"lookahead is {lookahead}; expected at least 1")
    return start_ns + intervals.astype(np.int64)[:, None] * np.arange(1, lookahead + 1, dtype=np.int64)


@dataclass(frozen=True)
class Superstep:
    """A decision of the policy: units per worker (in the order of `workers`), and why."""

    workers: tuple[int, ...]
    units: tuple[int, ...]
    barrier_ns: int
    reason: str


class ElasticBsp:
    """The policy: how many units (iterations) each worker has in the next superstep.

    Invariant of `plan`: every worker has between 1 (0 when nothing is left) and `lookahead` units, so that inside a
    superstep no worker is ever `lookahead` iterations ahead of another, and all meet at its end: the bound
    that the proof of SSP needs (section II).
    """

    def __init__(
        self, lookahead: int = 15, objective: Objective = "rate", staleness: float = STALENESS
    ) -> None:
        if lookahead < 1:
            raise ValueError(f"lookahead is {lookahead}; expected at least 1")
        if objective not in get_args(Objective):
            raise ValueError(f"objective is {objective!r}; expected 'wait' or 'rate'")
        self.lookahead = lookahead
        self.objective: Objective = objective
        self.staleness = staleness
        self._interval_ns: dict[int, int] = {}

    def observe(self, worker: int, interval_ns: int) -> None:
        """Record the duration of the worker's latest iteration (one unit)."""
        if interval_ns <= 0:
            raise ValueError(f"interval_ns of worker {worker} is {interval_ns}; expected a positive number")
        self._interval_ns[worker] = interval_ns

    def forget(self, worker: int) -> None:
        """Drop a worker that left; it is measured anew if it returns."""
        self._interval_ns.pop(worker, None)

    def plan(self, start_ns: int, workers: tuple[int, ...], most: int | None = None) -> Superstep:
        """The superstep that begins at `start_ns`; one unit each until every worker has been measured.

        `most`: units left over all workers; the last superstep deals them out so that the last worker ends soonest.
        """
        if not workers:
            raise ValueError("workers is empty; expected at least one")
        unknown = [worker for worker in workers if worker not in self._interval_ns]
        if unknown:
            left = len(workers) if most is None else min(most, len(workers))
            units = (1,) * left + (0,) * (len(workers) - left)
            slowest = max(self._interval_ns.values(), default=0)
            return Superstep(workers, units, start_ns + slowest, f"workers {unknown} are not measured yet")
        if most == 0:
            return Superstep(workers, (0,) * len(workers), start_ns, "nothing is left")
        intervals = np.array([self._interval_ns[worker] for worker in workers], dtype=np.int64)
        ends = predicted_end_times(start_ns, intervals, self.lookahead)
        barrier = zipline(ends, self.objective, start_ns, self.staleness)
        units = tuple(int(index) + 1 for index in barrier.indices)
        assert all(1 <= count <= self.lookahead for count in units)
        if most is not None and sum(units) > most:
            return self.rest(start_ns, workers, most, of_each=self.lookahead)
        return Superstep(
            workers,
            units,
            barrier.barrier_ns,
            f"least {self.objective}: {barrier.wait_ns / 1e9:.3g} s of waiting "
            f"in {(barrier.barrier_ns - start_ns) / 1e9:.3g} s, {min(units)} to {max(units)} units",
        )

    def rest(
        self, start_ns: int, workers: tuple[int, ...], units: int, *, of_each: int | None = None
    ) -> Superstep:
        """A superstep of exactly so many units over all workers, which must be measured: the last ends soonest.

        `of_each`: the most that a worker may have; None: any.
        """
        intervals = np.array([self._interval_ns[worker] for worker in workers], dtype=np.int64)
        sizes = cpu_batch_sizes(1 / intervals, units, minimum=0, maximum=of_each)
        barrier_ns = start_ns + int((sizes * intervals).max())
        return Superstep(workers, tuple(int(size) for size in sizes), barrier_ns, f"the last {units} units")


def _checked(end_times: npt.ArrayLike) -> Times:
    times = np.asarray(end_times)
    if times.ndim != 2 or 0 in times.shape:
        raise ValueError(f"end_times has shape {times.shape}; expected (n, R) with n, R >= 1")
    if not np.issubdtype(times.dtype, np.integer):
        raise ValueError(f"end_times has dtype {times.dtype}; expected integer nanoseconds")
    if times.dtype == np.uint64 and int(times.max()) >= 2**63:
        raise ValueError("end_times holds values of 2^63 or more; expected int64 nanoseconds")
    times = np.ascontiguousarray(times, dtype=np.int64)
    wrong = int(_first_descending_row(times))
    if wrong >= 0:
        raise ValueError(
            f"row {wrong} of end_times (shape {times.shape}) does not ascend; expected sorted rows"
        )
    span = int(times[:, -1].max()) - int(times[:, 0].min())
    if len(times) * span >= 2**62:
        raise ValueError(
            f"end_times (shape {times.shape}) span {span} ns; "
            f"expected less than 2^62 / n = {2**62 // len(times)}"
        )
    return times


def _merged(times: Times) -> tuple[Times, npt.NDArray[np.int32], int]:
    """All times in ascending order, relative to the first: (offsets, their workers, the first time).

    Offset and worker share one integer, which sorts several times faster than an argsort.
    """
    origin = int(times[:, 0].min())
    bits = max(1, (len(times) - 1).bit_length())
    keys = ((times - origin) << bits) | np.arange(len(times), dtype=np.int64)[:, None]
    ordered = np.sort(keys, axis=None)
    return ordered >> bits, (ordered & ((1 << bits) - 1)).astype(np.int32), origin


def _at(times: Times, barrier: int) -> Barrier:
    indices, wait = _latest(times, barrier)
    return Barrier(indices, barrier, int(wait))


def _least_loss(
    times: Times, offsets: Times, workers: npt.NDArray[np.int32], start: int, staleness: float
) -> int:
    """The barrier (as an offset) of least loss: floats find the few candidates, fractions decide."""
    n = len(times)
    first = int(times[:, 0].max() - times[:, 0].min())
    idle, losses = _losses(offsets, workers, times, start, first, staleness)
    near = np.flatnonzero(losses <= np.min(losses) * (1 + 1e-12))
    weight = Fraction(staleness) / (first - start)

    def loss(at: int) -> Fraction:
        length = int(offsets[at]) - start
        return Fraction(int(idle[at]), n * length) + weight * length

    return int(offsets[min(near, key=lambda at: (loss(int(at)), int(offsets[at])))])


@njit(cache=True)
def _first_descending_row(times: Times) -> int:
    for row in range(times.shape[0]):
        for column in range(1, times.shape[1]):
            if times[row, column] < times[row, column - 1]:
                return row
    return -1


@njit(cache=True)
def _least_wait(offsets: Times, workers: npt.NDArray[np.int32], n: int) -> int:
    """Algorithm 2 on the merged times: the shortest window that holds every worker; its end.

    The window's left end moves on as long as its worker occurs again further right, so at every T the
    window begins at the least of the workers' latest times.
    """
    inside = np.zeros(n, dtype=np.int32)
    missing = n
    left = 0
    best_wait = np.int64(-1)
    best = np.int64(0)
    for right in range(len(offsets)):
        worker = workers[right]
        if inside[worker] == 0:
            missing -= 1
        inside[worker] += 1
        while inside[workers[left]] > 1:
            inside[workers[left]] -= 1
            left += 1
        if missing == 0:
            wait = offsets[right] - offsets[left]
            if best_wait < 0 or wait < best_wait:
                best_wait = wait
                best = offsets[right]
    return int(best)


@njit(cache=True)
def _losses(
    offsets: Times,
    workers: npt.NDArray[np.int32],
    times: Times,
    start: int,
    first: int,
    staleness: float,
) -> tuple[Times, npt.NDArray[np.float64]]:
    """For each merged time as the barrier: all workers' waiting, and the loss (inf: a worker cannot reach it)."""
    n = times.shape[0]
    latest = np.full(n, np.int64(-1))
    missing = n
    total = np.int64(0)
    idle = np.zeros(len(offsets), dtype=np.int64)
    losses = np.full(len(offsets), np.inf)
    for at in range(len(offsets)):
        worker = workers[at]
        if latest[worker] < 0:
            missing -= 1
            total += offsets[at]
        else:
            total += offsets[at] - latest[worker]
        latest[worker] = offsets[at]
        if missing == 0:
            length = offsets[at] - start
            idle[at] = n * offsets[at] - total
            losses[at] = idle[at] / (n * float(length)) + staleness * length / float(first - start)
    return idle, losses


@njit(cache=True)
def _latest(times: Times, barrier: int) -> tuple[Times, int]:
    """Each worker's latest index at or before the barrier, and barrier minus the least of those times."""
    indices = np.empty(times.shape[0], dtype=np.int64)
    least = barrier
    for row in range(times.shape[0]):
        indices[row] = np.searchsorted(times[row], barrier, side="right") - 1
        least = min(least, times[row, indices[row]])
    return indices, barrier - least
