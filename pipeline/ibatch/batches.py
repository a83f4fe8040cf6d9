"""iBatch (Wang, Pi, Zhou, AAAI 2019): pull parameters in batches of layers while the layers before compute.

Pulls run back to back on one channel, each with a start-up time; a batch's forward starts when its own pull
and the forward before it are done. With batches that end at layers l_1 < ... < l_N = L,

    makespan = max over k of  k T_s + sum_{i <= l_k} T_t^i + sum_{i > l_{k-1}} C^i

which is the paper's equation 4 where its constraint 5 holds, and true everywhere. `batches` minimises it
exactly. Given a bound on the makespan, cutting each batch as far as possible is feasible whenever anything
is: a longer batch only leaves less to compute behind it. So the bound is searched, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]


class BatchingError(ValueError):
    """Times that cannot be; the message is one sentence."""


@dataclass(frozen=True)
class Batching:
    """ends: 1-based last layer of each batch, ascending. makespan_s: until the last forward is done (pull) or
    the last push is over (push)."""

    ends: tuple[int, ...]
    makespan_s: float


def batches(startup_s: float, transfer_s: npt.ArrayLike, forward_s: npt.ArrayLike) -> Batching:
    """The batching of pulls with the least makespan, exactly.

    startup_s: T_s, seconds per pull. transfer_s, forward_s: T_t and C, [L] seconds per layer. Raises
    BatchingError.
    """
    transfer, forward = _checked(startup_s, transfer_s, forward_s)
    ends, makespan_s = _optimum(float(startup_s), transfer, forward)
    return Batching(tuple(ends.tolist()), float(makespan_s))


def push_batches(startup_s: float, transfer_s: npt.ArrayLike, backward_s: npt.ArrayLike) -> Batching:
    """The batching of gradient pushes with the least time from the start of the backward to the end of the
    last push, exactly. Batches are pushed from the last to the first, each once its layers are done.

    Backward then push is pull then forward with time reversed, so the same batches are best.
    """
    return batches(startup_s, transfer_s, backward_s)


def makespan_seconds(
    startup_s: float, transfer_s: npt.ArrayLike, forward_s: npt.ArrayLike, ends: Sequence[int]
) -> float:
    """The makespan of given batches (see the module's formula). Raises BatchingError."""
    transfer, forward = _checked(startup_s, transfer_s, forward_s)
    if not len(ends) or list(ends) != sorted(set(ends)) or ends[0] < 1 or ends[-1] != len(transfer):
        raise BatchingError(f"batch ends must ascend from 1 or more to {len(transfer)}, found {list(ends)}")
    pulled, left = _sums(transfer, forward)
    starts = [0, *ends[:-1]]
    return max(
        k * startup_s + float(pulled[end]) + float(left[start])
        for k, (start, end) in enumerate(zip(starts, ends, strict=True), start=1)
    )


def iteration_seconds(
    startup_s: float,
    transfer_s: npt.ArrayLike,
    forward_s: npt.ArrayLike,
    backward_s: npt.ArrayLike,
    pull_ends: Sequence[int],
    push_ends: Sequence[int],
    *,
    iterations: int = 20,
    one_link: bool = False,
    asynchronous: bool = False,
) -> float:
    """Mean seconds per iteration of pull, forward, backward and push, simulated.

    asynchronous: the next pulls start when the backward ends, while pushes may still be going out; else they
    wait for the last push. one_link: pulls and pushes then share one channel, in the order in which they
    become ready; else each direction has its own. Raises BatchingError.
    """
    if iterations < 1:
        raise BatchingError(f"at least one iteration must be simulated, found {iterations}")
    transfer, forward = _checked(startup_s, transfer_s, forward_s)
    _, backward = _checked(startup_s, transfer_s, backward_s)
    # The last ends must be the last layer; that also checks the order.
    makespan_seconds(startup_s, transfer, forward, pull_ends)
    makespan_seconds(startup_s, transfer, backward, push_ends)
    ready_s = pull_free_s = push_free_s = 0.0
    for _ in range(iterations):
        compute_s = ready_s
        for start, end in zip([0, *pull_ends[:-1]], pull_ends, strict=True):
            begin = max(ready_s, pull_free_s, push_free_s if one_link else 0.0)
            pull_free_s = begin + startup_s + float(transfer[start:end].sum())
            compute_s = max(compute_s, pull_free_s) + float(forward[start:end].sum())
        for start, end in reversed(list(zip([0, *push_ends[:-1]], push_ends, strict=True))):
            compute_s += float(backward[start:end].sum())
            begin = max(compute_s, push_free_s, pull_free_s if one_link else 0.0)
            push_free_s = begin + startup_s + float(transfer[start:end].sum())
        ready_s = compute_s if asynchronous else push_free_s
    return max(ready_s, push_free_s) / iterations


def _checked(startup_s: float, transfer_s: npt.ArrayLike, compute_s: npt.ArrayLike) -> tuple[Floats, Floats]:
    transfer = np.ascontiguousarray(transfer_s, dtype=np.float64)
    compute = np.ascontiguousarray(compute_s, dtype=np.float64)
    if transfer.ndim != 1 or transfer.shape != compute.shape or transfer.size == 0:
        raise BatchingError(
            f"transfer and computing times must be two arrays over the layers, found shapes {transfer.shape} "
            f"and {compute.shape}"
        )
    # One pass that is also False for NaN.
    if not (startup_s >= 0 and transfer.min() >= 0 and compute.min() >= 0):
        raise BatchingError("times must be 0 or more")
    if not np.isfinite(startup_s + transfer.sum() + compute.sum()):
        raise BatchingError("times must be finite")
    return transfer, compute


@njit(cache=True, nogil=True)
def _sums(transfer: Floats, forward: Floats) -> tuple[Floats, Floats]:
    """pulled[l] = sum of T_t up to layer l; left[l] = sum of C behind layer l."""
    layers = transfer.size
    pulled = np.zeros(layers + 1)
    left = np.zeros(layers + 1)
    for i in range(layers):
        pulled[i + 1] = pulled[i] + transfer[i]
    for i in range(layers - 1, -1, -1):
        left[i] = left[i + 1] + forward[i]
    return pulled, left


@njit(cache=True, nogil=True)
def _cut(startup_s: float, pulled: Floats, left: Floats, bound_s: float, ends: npt.NDArray[np.int64]) -> int:
    """Cut as far as the bound allows, into `ends`; the number of batches, or 0 if the bound is too low."""
    layers = pulled.size - 1
    count = 0
    start = 0
    end = 0
    while start < layers:
        base = (count + 1) * startup_s
        # The comparison is that of the makespan itself: the last bit decides here.
        while end < layers and base + pulled[end + 1] + left[start] <= bound_s:
            end += 1
        if end == start:
            return 0
        ends[count] = end
        count += 1
        start = end
    return count


@njit(cache=True, nogil=True)
def _worst(startup_s: float, pulled: Floats, left: Floats, ends: npt.NDArray[np.int64], count: int) -> float:
    """The makespan of the first `count` ends."""
    worst = 0.0
    start = 0
    for k in range(count):
        worst = max(worst, (k + 1) * startup_s + pulled[ends[k]] + left[start])
        start = ends[k]
    return worst


@njit(cache=True, nogil=True)
def _optimum(startup_s: float, transfer: Floats, forward: Floats) -> tuple[npt.NDArray[np.int64], float]:
    """Search the least feasible bound between neighbouring floats."""
    pulled, left = _sums(transfer, forward)
    layers = transfer.size
    best = np.empty(layers, np.int64)
    best[0] = layers
    count = 1
    high = _worst(startup_s, pulled, left, best, 1)
    # Some pull must be first and hold a layer; all parameters must be pulled.
    low = max(startup_s + pulled[layers], startup_s + pulled[1] + left[0])
    trial = np.empty(layers, np.int64)
    bound = low
    while True:
        found = _cut(startup_s, pulled, left, bound, trial)
        if found > 0:
            high = _worst(startup_s, pulled, left, trial, found)
            count = found
            best, trial = trial, best
        else:
            low = bound
        bound = low + (high - low) / 2
        if bound <= low or bound >= high:
            break
    return best[:count].copy(), high
