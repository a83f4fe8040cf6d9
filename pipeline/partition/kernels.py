"""The partitioner's dynamic programs, compiled. Each function fills one row: all ranges that begin at one state.

Both follow the thesis' recurrence (5.3.1) over levels of the topology,

    A^k(i, j, m) = min( T^k(i -> j, m),  min over s, m' of max( A^k(i, s, m - m'), cut(s), T^k(s+1 -> j, m') ) )

with the case of no cut that the printed one lacks, and "at most m" components, so that some may stay idle.
`chain_row` is for models whose closed sets are prefixes; it looks at a handful of s per (j, m, m') instead of
all, because T falls and A's running minimum rises with s. `general_row` is for branching models, memory
limits, limits on the number of stages and unequal devices.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

THESIS = 0
RELEASED = 1


@njit(cache=True, nogil=True)
def exchange_seconds(model: int, m: int, weight_bytes: float, bytes_per_s: float) -> float:
    """Seconds to add up the gradients of a stage over its m replicas, once per m minibatches."""
    if model == THESIS:
        return 2.0 * (m - 1) * weight_bytes / bytes_per_s
    return 4.0 * (m - 1) * weight_bytes / (bytes_per_s * m)


@njit(cache=True, nogil=True)
def uncut_exchange_seconds(
    model: int, m: int, weight_bytes: float, bytes_per_s: float, inner_count: int
) -> float:
    """As `exchange_seconds` for a range without any cut at this level; the released optimizer's differs there."""
    if model == THESIS:
        return exchange_seconds(model, m, weight_bytes, bytes_per_s)
    return exchange_seconds(model, m, weight_bytes, bytes_per_s) / inner_count


@njit(cache=True, nogil=True)
def stage_seconds(model: int, inner_s: float, m: int, exchange_s: float) -> float:
    """T^k(i -> j, m): one stage on m components, inner_s on each. The thesis overlaps computing and exchange
    (5.3.1), the released optimizer adds them."""
    if model == THESIS:
        return np.maximum(inner_s, exchange_s) / m
    return (inner_s + exchange_s) / m


@njit(cache=True, nogil=True)
def cut_seconds(model: int, cut_bytes: float, end_bytes: float, m: int, bytes_per_s: float) -> float:
    """Activations there and gradients back over one cut; m is the replicas behind the cut."""
    if model == THESIS:
        return 2.0 * cut_bytes / bytes_per_s
    return 2.0 * np.maximum(cut_bytes, end_bytes) / (bytes_per_s * m)


@njit(cache=True, nogil=True)
def chain_row(
    a: int,
    inner: Floats,
    weights: Floats,
    cut: Floats,
    model: int,
    count: int,
    bytes_per_s: float,
    inner_count: int,
    most_replicas: int,
    out: Floats,
) -> None:
    """out[m, j] = A^k(a, j, m) for ranges of states a -> j, m components at most (out[0] is infinite).

    inner[j, s]: A^{k-1} of the range s -> j on one whole component; weights, cut: [S] by state.
    Long because the two searches share `best` and `where`, which stay in registers in one compiled function.
    """
    states = cut.size
    out[:, :] = np.inf
    floor = np.empty((count + 1, states + 1))
    pivot = np.empty(count + 1, np.int64)
    for m in range(1, count + 1):
        for part in range(1, m):
            pivot[part] = a + 1
        parts = min(m, most_replicas + 1)
        for j in range(a + 1, states):
            best = out[m - 1, j]
            if m <= most_replicas:
                weight_bytes = weights[j] - weights[a]
                exchange_s = uncut_exchange_seconds(model, m, weight_bytes, bytes_per_s, inner_count)
                best = min(best, stage_seconds(model, inner[j, a], m, exchange_s))
            for part in range(1, parts):
                rest = m - part
                start = min(pivot[part], j - 1)
                where = start
                # To the left the last stage grows: stop once it alone is too slow.
                s = start
                while s > a:
                    exchange_s = exchange_seconds(model, part, weights[j] - weights[s], bytes_per_s)
                    last = stage_seconds(model, inner[j, s], part, exchange_s)
                    if last >= best:
                        break
                    value = max(out[rest, s], last)
                    if value < best:
                        value = max(value, cut_seconds(model, cut[s], cut[j], part, bytes_per_s))
                        if value < best:
                            best = value
                    if out[rest, s] > last:
                        where = s
                    s -= 1
                # To the right everything before it is at least `floor`.
                s = start + 1
                while s < j and floor[rest, s] < best:
                    exchange_s = exchange_seconds(model, part, weights[j] - weights[s], bytes_per_s)
                    last = stage_seconds(model, inner[j, s], part, exchange_s)
                    value = max(out[rest, s], last)
                    if value < best:
                        value = max(value, cut_seconds(model, cut[s], cut[j], part, bytes_per_s))
                        if value < best:
                            best = value
                    if out[rest, s] < last:
                        where = s
                    s += 1
                pivot[part] = where
            out[m, j] = best
        lowest = np.inf
        for s in range(states - 1, a, -1):
            lowest = min(lowest, out[m, s])
            floor[m, s] = lowest


@njit(cache=True, nogil=True)
def _inner_seconds(
    inner: Floats,
    solo: Floats,
    types: Ints,
    first: int,
    last: int,
    k: int,
    j: int,
    stages: int,
    used: int,
    behind: int,
) -> float:
    """The slowest of the component types types[first:last] on the range k -> j.

    Components of one type may run a pipeline inside; a mixture runs one stage on all of its devices, so that
    every copy of every stage holds the same layers.
    """
    if last - first == 1:
        return inner[types[first], j, k, stages, used, behind]
    slowest = 0.0
    if used + 1 < inner.shape[4]:
        return np.inf
    for index in range(first, last):
        slowest = max(slowest, solo[types[index], j, k, behind])
    return slowest


@njit(cache=True, nogil=True)
def general_row(
    i: int,
    after: Ints,
    contains: npt.NDArray[np.bool_],
    inner: Floats,
    solo: Floats,
    weights: Floats,
    cut: Floats,
    sizes: Ints,
    fewer_at: Ints,
    fewer: Ints,
    part_at: Ints,
    parts: Ints,
    rests: Ints,
    type_at: Ints,
    types: Ints,
    model: int,
    bytes_per_s: float,
    inner_count: int,
    most_replicas: int,
    memory: bool,
    span: int,
    out: Floats,
) -> None:
    """out[c, j, n, u, b]: A^k(i, j) on sub-multiset c of the components, at most n + 1 stages and u + 1 devices,
    b devices at work in later stages (the last two only count with a memory limit; else their size is 1).

    after: states that contain i, smallest first. contains[j, k]: k is inside j. inner[type, j, k, n, u, b]:
    A^{level-1} of k -> j on one whole component; solo[type, j, k, b]: the same as one stage on all of its
    devices (j before k: the innermost loop runs over k). span: 0, or the devices of one component, all of which
    then count as at work wherever it is used at all (u has size 1). sizes[c], fewer (c less one component),
    parts/rests (c = part + rest), types (the component types in c): flat lists, with where each c's begin.
    Long because it is one nest of loops, whose inner ones would take most of its arguments and indices along.
    """
    configs, _, most_stages, most_used, most_behind = out.shape
    inner_used = inner.shape[4]
    out[:, :, :, :, :] = np.inf
    for c in range(1, configs):
        for j in after:
            for n in range(most_stages):
                for u in range(most_used):
                    limit = 1
                    if memory:
                        limit = most_behind - (u if span == 0 else sizes[c] * span - 1)
                    for b in range(limit):
                        best = np.inf
                        for index in range(fewer_at[c], fewer_at[c + 1]):
                            best = min(best, out[fewer[index], j, n, u, b])
                        if n > 0:
                            best = min(best, out[c, j, n - 1, u, b])
                        if u > 0:
                            best = min(best, out[c, j, n, u - 1, b])
                        m = sizes[c]
                        if m <= most_replicas:
                            used = min((u + 1) // m, inner_used) if memory and span == 0 else 1
                            if used >= 1:
                                behind = (b + m - 1) // m if memory else 0
                                inner_s = _inner_seconds(
                                    inner, solo, types, type_at[c], type_at[c + 1], i, j, n, used - 1, behind
                                )
                                weight_bytes = weights[j] - weights[i]
                                exchange_s = uncut_exchange_seconds(
                                    model, m, weight_bytes, bytes_per_s, inner_count
                                )
                                best = min(best, stage_seconds(model, inner_s, m, exchange_s))
                        if n == 0 and most_stages > 1:
                            out[c, j, n, u, b] = best
                            continue
                        for index in range(part_at[c], part_at[c + 1]):
                            part = parts[index]
                            m = sizes[part]
                            if m > most_replicas:
                                continue
                            most = min(inner_used, u // m) if memory and span == 0 else 1
                            behind = (b + m - 1) // m if memory else 0
                            for k in after:
                                if not contains[j, k]:
                                    continue
                                link_s = cut_seconds(model, cut[k], cut[j], m, bytes_per_s)
                                if link_s >= best:
                                    continue
                                exchange_s = exchange_seconds(model, m, weights[j] - weights[k], bytes_per_s)
                                for stages in range(max(1, n)):
                                    for used in range(most):
                                        inner_s = _inner_seconds(
                                            inner,
                                            solo,
                                            types,
                                            type_at[part],
                                            type_at[part + 1],
                                            k,
                                            j,
                                            stages,
                                            used,
                                            behind,
                                        )
                                        last = stage_seconds(model, inner_s, m, exchange_s)
                                        if last >= best:
                                            continue
                                        before_n = n - stages - 1 if most_stages > 1 else 0
                                        before_u = u - m * (used + 1) if memory and span == 0 else 0
                                        before_b = 0
                                        if memory:
                                            before_b = b + m * (used + 1 if span == 0 else span)
                                        before = out[rests[index], k, before_n, before_u, before_b]
                                        best = min(best, max(before, link_s, last))
                        out[c, j, n, u, b] = best
