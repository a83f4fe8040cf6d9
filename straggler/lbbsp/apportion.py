"""Sharing out whole units so that the last worker ends as early as possible: exact, with floats as input.

The k-th unit of worker i is an *event* at the time when i would end it. The best shares are the `total`
earliest events (ties: the lower worker), as times only grow with k. A guess in floats comes near; two
tournament trees, over the next event and over the last event of each worker, then add, take away and swap
units until no event outside is earlier than one inside. Every comparison is exact, so the guess affects
the running time and never the result.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Tree = npt.NDArray[np.int32]

# The two tournaments: whose next unit would end first, and whose last unit ended last.
NEXT, LAST = 0, 1
# A product of floats is a sum of two floats, exactly, as long as nothing under- or overflows.
SMALLEST, LARGEST = 1e-100, 1e100


@njit(cache=True)
def two_sum(a: float, b: float) -> tuple[float, float]:
    """a + b = s + e exactly (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@njit(cache=True)
def two_product(a: float, b: float) -> tuple[float, float]:
    """a b = p + e exactly (Dekker, Veltkamp's splitting)."""
    p = a * b
    c = 134217729.0 * a
    a_high = c - (c - a)
    c = 134217729.0 * b
    b_high = c - (c - b)
    a_low, b_low = a - a_high, b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


@njit(cache=True)
def sign_of_sum(terms: Floats) -> int:
    """The sign of the exact sum of a few floats, by growing an expansion (Shewchuk); destroys `terms`."""
    for count in range(1, len(terms)):
        carry = terms[count]
        for at in range(count):
            carry, terms[at] = two_sum(carry, terms[at])
        terms[count] = carry
    for at in range(len(terms) - 1, -1, -1):
        if terms[at] != 0.0:
            return 1 if terms[at] > 0 else -1
    return 0


@njit(cache=True)
def compare(law: Floats, knee: Counts, i: int, k_i: int, j: int, k_j: int) -> int:
    """The sign of (time of i's k_i-th unit) - (time of j's k_j-th unit), exact.

    `law` (n, 1): units per second, time k / v. `law` (n, 4): slope per sample, intercept, communication,
    samples per unit, and `knee` in samples: time m max(k u, knee) + b + c.
    """
    if law.shape[1] == 1:
        left, right = k_i * law[j, 0], k_j * law[i, 0]
        if left != right:  # rounding may make different products equal, but never swaps them
            return 1 if left > right else -1
        _, e_i = two_product(float(k_i), law[j, 0])
        _, e_j = two_product(float(k_j), law[i, 0])
        return 1 if e_i > e_j else (-1 if e_i < e_j else 0)
    x_i, x_j = max(k_i * law[i, 3], float(knee[i])), max(k_j * law[j, 3], float(knee[j]))
    t_i = law[i, 0] * x_i + law[i, 1] + law[i, 2]
    t_j = law[j, 0] * x_j + law[j, 1] + law[j, 2]
    if abs(t_i - t_j) > 1e-15 * (t_i + t_j):  # three roundings each, all terms >= 0: sure of the sign
        return 1 if t_i > t_j else -1
    p_i, e_i = two_product(law[i, 0], x_i)
    p_j, e_j = two_product(law[j, 0], x_j)
    return sign_of_sum(np.array([p_i, e_i, law[i, 1], law[i, 2], -p_j, -e_j, -law[j, 1], -law[j, 2]]))


@njit(cache=True)
def about_s(law: Floats, knee: Counts, i: int, k: int) -> float:
    """The time of i's k-th unit, correct except for the last few bits."""
    if law.shape[1] == 1:
        return k / law[i, 0] if law[i, 0] > 0 else (np.inf if k > 0 else 0.0)
    return law[i, 0] * max(k * law[i, 3], float(knee[i])) + law[i, 1] + law[i, 2]


@njit(cache=True)
def _wins(side: int, i: int, j: int, law: Floats, knee: Counts, counts: Counts, times: Floats) -> int:
    """The worker with the earlier (side NEXT) or later (side LAST) event; floats decide if they differ enough."""
    a, b = times[side, i], times[side, j]
    low, high = min(a, b), max(a, b)
    if high - low > 1e-14 * low:
        return i if (a < b) == (side == NEXT) else j
    if a == b and np.isinf(a):
        return i
    ahead = 1 if side == NEXT else 0
    sign = compare(law, knee, i, counts[i] + ahead, j, counts[j] + ahead)
    if sign == 0:
        sign = 1 if i > j else -1
    return i if (sign < 0) == (side == NEXT) else j


@njit(cache=True)
def refresh(
    i: int, counts: Counts, law: Floats, knee: Counts, low: Counts, high: Counts, trees: Tree, times: Floats
) -> None:
    """Update a worker's two events, and the matches above its leaves, after its count or law changed."""
    times[NEXT, i] = about_s(law, knee, i, counts[i] + 1) if counts[i] < high[i] else np.inf
    times[LAST, i] = about_s(law, knee, i, counts[i]) if counts[i] > low[i] else -np.inf
    for side in range(2):
        tree = trees[side]
        node = (len(tree) // 2 + i) // 2
        while node >= 1:
            tree[node] = _wins(side, tree[2 * node], tree[2 * node + 1], law, knee, counts, times)
            node //= 2


@njit(cache=True)
def plant(
    counts: Counts, law: Floats, knee: Counts, low: Counts, high: Counts, trees: Tree, times: Floats
) -> None:
    """Play both tournaments from the leaves up; entry n of `times` belongs to no worker."""
    n = len(counts)
    times[NEXT, n], times[LAST, n] = np.inf, -np.inf
    for i in range(n):
        times[NEXT, i] = about_s(law, knee, i, counts[i] + 1) if counts[i] < high[i] else np.inf
        times[LAST, i] = about_s(law, knee, i, counts[i]) if counts[i] > low[i] else -np.inf
    for side in range(2):
        tree = trees[side]
        half = len(tree) // 2
        for leaf in range(half):
            tree[half + leaf] = min(leaf, n)
        for node in range(half - 1, 0, -1):
            tree[node] = _wins(side, tree[2 * node], tree[2 * node + 1], law, knee, counts, times)


@njit(cache=True)
def settle(
    counts: Counts,
    law: Floats,
    knee: Counts,
    low: Counts,
    high: Counts,
    total: int,
    trees: Tree,
    times: Floats,
) -> None:
    """Move from any counts within [low, high] to the `total` earliest events; sum(low) <= total <= sum(high)."""
    have = counts.sum()
    while have != total:
        side, by = (NEXT, 1) if have < total else (LAST, -1)
        worker = trees[side, 1]
        counts[worker] += by
        have += by
        refresh(worker, counts, law, knee, low, high, trees, times)
    while True:
        gains, loses = trees[NEXT, 1], trees[LAST, 1]
        if gains == loses or times[NEXT, gains] == np.inf or times[LAST, loses] == -np.inf:
            return
        sign = compare(law, knee, gains, counts[gains] + 1, loses, counts[loses])
        if sign > 0 or (sign == 0 and gains > loses):
            return
        counts[gains] += 1
        refresh(gains, counts, law, knee, low, high, trees, times)
        counts[loses] -= 1
        refresh(loses, counts, law, knee, low, high, trees, times)


@njit(cache=True)
def _units_by(law: Floats, knee: Counts, low: Counts, high: Counts, i: int, at_s: float) -> int:
    """How many units worker i ends by `at_s`, roughly, within its bounds."""
    if law.shape[1] == 1:
        units = at_s * law[i, 0]
    else:
        room, slope = at_s - law[i, 1] - law[i, 2], law[i, 0] * law[i, 3]
        if room < law[i, 0] * knee[i]:
            units = 0.0
        else:
            units = room / slope if slope > 0 else float(high[i])
    return max(low[i], int(min(units, float(high[i]))))


@njit(cache=True)
def _latest_end_s(law: Floats, knee: Counts, high: Counts, total: int) -> float:
    """A time by which `total` units are certainly done."""
    late = 0.0
    for i in range(len(high)):
        if law.shape[1] == 1:
            end = total / law[i, 0] if law[i, 0] > 0 else 0.0
            late = end if late == 0.0 or 0.0 < end < late else late
        else:
            late = max(late, law[i, 0] * max(high[i] * law[i, 3], knee[i]) + law[i, 1] + law[i, 2])
    return late


@njit(cache=True)
def start(counts: Counts, law: Floats, knee: Counts, low: Counts, high: Counts, total: int) -> None:
    """Find the time of the `total`-th event and fill `counts` up to it; ties go to the lower workers.

    Interpolates, and halves the range in every third step: a few passes over the workers.
    """
    n = len(counts)
    early, late = 0.0, _latest_end_s(law, knee, high, total)
    before, after = float(low.sum()), float(n) * total  # units done by `early` and `late`; sums may pass 2^63
    for step in range(90):
        share = 0.5 if step % 3 == 2 or after == before else (total - before) / (after - before)
        middle = early + share * (late - early)
        if middle <= early or middle >= late:
            middle = 0.5 * (early + late)
            if middle <= early or middle >= late:
                break
        done = 0.0
        for i in range(n):
            done += _units_by(law, knee, low, high, i, middle)
        if done <= total:
            early, before = middle, done
        else:
            late, after = middle, done
        if 0 <= total - done <= n // 4096:
            break
    have = 0
    for i in range(n):
        counts[i] = _units_by(law, knee, low, high, i, early)
        have += counts[i]
    for i in range(n):
        if have >= total:
            break
        extra = min(total - have, _units_by(law, knee, low, high, i, late) - counts[i])
        counts[i] += extra
        have += extra


def empty_trees(n: int) -> tuple[Tree, Floats]:
    """Room for the two tournaments over n workers, and for the times of their events."""
    leaves = 2 if n == 1 else 1 << (n - 1).bit_length()
    return np.empty((2, 2 * leaves), dtype=np.int32), np.empty((2, n + 1))
