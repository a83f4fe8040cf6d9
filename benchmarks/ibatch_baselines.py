"""The baselines of iBatch: one batch, a batch per layer, and the paper's two greedy algorithms.

The greedy algorithms choose by equation 4 and only among batchings that meet constraint 5, so they can run
out of candidates (then there is no result) and never try a single batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipeline.ibatch.batches import Batching, makespan_seconds

Times = npt.NDArray[np.float64]


def default(startup_s: float, transfer_s: Times, forward_s: Times) -> Batching:
    """One pull of everything, then the forward."""
    return _judged(startup_s, transfer_s, forward_s, [len(transfer_s)])


def layer_by_layer(startup_s: float, transfer_s: Times, forward_s: Times) -> Batching:
    """A pull for every layer."""
    return _judged(startup_s, transfer_s, forward_s, list(range(1, len(transfer_s) + 1)))


def paper(startup_s: float, transfer_s: Times, forward_s: Times) -> Batching | None:
    """The better of algorithms 1 and 2 by equation 4, with its true makespan; None if neither has a result."""
    found = [
        ends
        for ends in (
            greedy_from_front(startup_s, transfer_s, forward_s),
            greedy_from_back(startup_s, transfer_s, forward_s),
        )
        if ends is not None
    ]
    if not found:
        return None
    best = min(found, key=lambda ends: equation_4(startup_s, transfer_s, forward_s, ends))
    return _judged(startup_s, transfer_s, forward_s, best)


def equation_4(startup_s: float, transfer_s: Times, forward_s: Times, ends: Sequence[int]) -> float:
    """EXE1 + EXE2 + EXE3: all pulls, then the last batch's forward."""
    last = ends[-2] if len(ends) > 1 else 0
    return float(len(ends) * startup_s + transfer_s.sum() + forward_s[last:].sum())


def greedy_from_front(startup_s: float, transfer_s: Times, forward_s: Times) -> list[int] | None:
    """Algorithm 1: ends from l_1 on; None when it runs out of candidates."""
    layers = len(transfer_s)
    pulled, done = _cumulated(transfer_s), _cumulated(forward_s)
    # Constraint 5 for k = 1; of several l_2 for one l_1 the one that wastes least, as in the later steps.
    pairs = [
        (first, second)
        for first in range(1, layers)
        for second in range(first + 1, layers + 1)
        if startup_s + pulled[second] - pulled[first] >= done[first]
    ]
    if not pairs:
        return None
    first, second = min(pairs, key=lambda p: (-done[p[0]], startup_s + pulled[p[0]], p[1]))
    ends = [first, second]
    while ends[-1] < layers:
        before, last = ends[-2], ends[-1]
        hidden = done[last] - done[before]
        fits = [x for x in range(last + 1, layers + 1) if startup_s + pulled[x] - pulled[last] >= hidden]
        if not fits:
            return None
        ends.append(min(fits, key=lambda x: startup_s + pulled[x] - pulled[last] - hidden))
    return ends


def greedy_from_back(startup_s: float, transfer_s: Times, forward_s: Times) -> list[int] | None:
    """Algorithm 2: ends from l_{N-1} down; None when it runs out of candidates."""
    layers = len(transfer_s)
    pulled, done = _cumulated(transfer_s), _cumulated(forward_s)
    pairs = [
        (before, last)
        for last in range(1, layers)
        for before in range(last)
        if startup_s + pulled[layers] - pulled[last] >= done[last] - done[before]
    ]
    if not pairs:
        return None
    before, last = min(pairs, key=lambda p: (-(done[p[1]] - done[p[0]]), done[layers] - done[p[1]], -p[0]))
    ends = [before, last, layers]
    while ends[0] > 0:
        low, high = ends[0], ends[1]
        room = startup_s + pulled[high] - pulled[low]
        fits = [x for x in range(low) if room >= done[low] - done[x]]
        if not fits:
            return None
        ends.insert(0, min(fits, key=lambda x: (room - (done[low] - done[x]), -x)))
    return ends[1:]


def _cumulated(times: Times) -> Times:
    return np.concatenate([[0.0], np.cumsum(times)])


def _judged(startup_s: float, transfer_s: Times, forward_s: Times, ends: list[int]) -> Batching:
    return Batching(tuple(ends), makespan_seconds(startup_s, transfer_s, forward_s, ends))
