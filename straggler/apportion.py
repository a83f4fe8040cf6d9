"""Sharing out whole units so that the last worker ends as early as can be: exact, with floats as input.

The k-th unit of worker i is an *event* at the time when i would end it. The best shares are the `total`
earliest events (ties: the lower worker), as times only grow with k. A guess in floats comes near; two
tournament trees, over the next event and over the last event of each worker, then add, take away and swap
units until no event outside is earlier than one inside. Every comparison is exact, so the guess decides
how long it takes and never what comes out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Tree = npt.NDArray[np.int32]

NOBODY = -1
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
        p_i, e_i = two_product(float(k_i), law[j, 0])
        p_j, e_j = two_product(float(k_j), law[i, 0])
        if p_i != p_j:
            return 1 if p_i > p_j else -1
        return 1 if e_i > e_j else (-1 if e_i < e_j else 0)
    p_i, e_i = two_product(law[i, 0], max(k_i * law[i, 3], float(knee[i])))
    p_j, e_j = two_product(law[j, 0], max(k_j * law[j, 3], float(knee[j])))
    t_i = p_i + law[i, 1] + law[i, 2]
    t_j = p_j + law[j, 1] + law[j, 2]
    if abs(t_i - t_j) > 1e-15 * (t_i + t_j):  # three roundings each, all terms >= 0: sure of the sign
        return 1 if t_i > t_j else -1
    return sign_of_sum(np.array([p_i, e_i, law[i, 1], law[i, 2], -p_j, -e_j, -law[j, 1], -law[j, 2]]))


@njit(cache=True)
def _better(law: Floats, knee: Counts, counts: Counts, bound: Counts, ahead: int, i: int, j: int) -> int:
    """Who wins: the earlier next event (ahead 1) or the later last event (ahead 0). NOBODY always loses."""
    if i == NOBODY or (counts[i] == bound[i]):
        return j if j != NOBODY and counts[j] != bound[j] else NOBODY
    if j == NOBODY or (counts[j] == bound[j]):
        return i
    sign = compare(law, knee, i, counts[i] + ahead, j, counts[j] + ahead)
    if ahead == 1:
        return i if sign < 0 or (sign == 0 and i < j) else j
    return i if sign > 0 or (sign == 0 and i > j) else j


@njit(cache=True)
def _climb(
    tree: Tree, law: Floats, knee: Counts, counts: Counts, bound: Counts, ahead: int, worker: int
) -> None:
    """Play the matches above a worker's leaf again."""
    node = (len(tree) // 2 + worker) // 2
    while node >= 1:
        tree[node] = _better(law, knee, counts, bound, ahead, tree[2 * node], tree[2 * node + 1])
        node //= 2


@njit(cache=True)
def build(tree: Tree, law: Floats, knee: Counts, counts: Counts, bound: Counts, ahead: int) -> None:
    """Play the whole tournament: leaves are the workers, tree[1] the winner."""
    half = len(tree) // 2
    for leaf in range(half):
        tree[half + leaf] = leaf if leaf < len(counts) else NOBODY
    for node in range(half - 1, 0, -1):
        tree[node] = _better(law, knee, counts, bound, ahead, tree[2 * node], tree[2 * node + 1])
    if half == 1:  # one worker: its leaf is no winner while it stands at its bound
        tree[1] = _better(law, knee, counts, bound, ahead, 0, NOBODY)


@njit(cache=True)
def _change(
    worker: int, by: int, counts: Counts, law: Floats, knee: Counts, low: Counts, high: Counts, trees: Tree
) -> None:
    counts[worker] += by
    refresh(worker, counts, law, knee, low, high, trees)


@njit(cache=True)
def refresh(
    worker: int, counts: Counts, law: Floats, knee: Counts, low: Counts, high: Counts, trees: Tree
) -> None:
    """After a worker's count or law changed."""
    if len(counts) == 1:
        build(trees[0], law, knee, counts, high, 1)
        build(trees[1], law, knee, counts, low, 0)
    else:
        _climb(trees[0], law, knee, counts, high, 1, worker)
        _climb(trees[1], law, knee, counts, low, 0, worker)


@njit(cache=True)
def settle(
    counts: Counts, law: Floats, knee: Counts, low: Counts, high: Counts, total: int, trees: Tree
) -> None:
    """Move from any counts within [low, high] to the `total` earliest events; sum(low) <= total <= sum(high)."""
    have = counts.sum()
    while have < total:
        _change(trees[0, 1], 1, counts, law, knee, low, high, trees)
        have += 1
    while have > total:
        _change(trees[1, 1], -1, counts, law, knee, low, high, trees)
        have -= 1
    while True:
        gains, loses = trees[0, 1], trees[1, 1]
        if min(gains, loses) == NOBODY or gains == loses:
            return
        sign = compare(law, knee, gains, counts[gains] + 1, loses, counts[loses])
        if sign > 0 or (sign == 0 and gains > loses):
            return
        _change(gains, 1, counts, law, knee, low, high, trees)
        _change(loses, -1, counts, law, knee, low, high, trees)


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
    """A time by which `total` units are done for sure."""
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
    """Bisect for the time of the `total`-th event, and fill `counts` up to it; of ties, the lower workers."""
    n = len(counts)
    early, late = 0.0, _latest_end_s(law, knee, high, total)
    for _ in range(64):
        middle = 0.5 * (early + late)
        if middle <= early or middle >= late:
            break
        have = 0
        for i in range(n):
            have += _units_by(law, knee, low, high, i, middle)
        if have <= total:
            early = middle
        else:
            late = middle
        if have == total:
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


def empty_trees(n: int) -> Tree:
    """Room for the two tournaments over n workers."""
    return np.empty((2, 2 * (1 << max(0, (n - 1).bit_length()))), dtype=np.int32)


@njit(cache=True)
def plant(counts: Counts, law: Floats, knee: Counts, low: Counts, high: Counts, trees: Tree) -> None:
    """Build both trees for the counts as they are."""
    build(trees[0], law, knee, counts, high, 1)
    build(trees[1], law, knee, counts, low, 0)
