"""The search for the footprint of least E: machines are added step by step, then exchanged while that lowers E.

Compiled: a decision weighs some thousand footprints. State that the loops change travels in arrays: `Pools` holds
machines, losses and work per hour by pool, and `sums` the vCPUs and the cost per hour of the footprint.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bidbrain.policy.pool_model import Figures, Floats, Footprint, Ints, footprint_value, values_with_more

MOST_EXCHANGES = 12
MOST_WEIGHED = 6  # choices that an exchange may give up, the dearest
LEAST_GAIN = 1e-6  # of E: below it an exchange is noise
VCPUS, COST = 0, 1  # of `sums`

Columns = tuple[Ints, Floats, Floats, Floats, Floats, Floats]  # of Choices
Pools = tuple[Floats, Floats, Floats]


def fill(footprint: Footprint, size_vcpus: float, cap_vcpus: float, step_vcpus: float, worth: float) -> None:
    """Add the choices of least E, step by step: up to `size_vcpus`; from there to `cap_vcpus` while it pays.

    It pays if E falls, or if the work that is added costs at most `worth` (what it would cost otherwise). Then choices
    are exchanged while that lowers E.
    """
    sums = np.array([footprint.vcpus, footprint.cost])
    _fill(
        footprint.terms.figures,
        footprint.choices.arrays,
        footprint.counts,
        (footprint.machines, footprint.lost, footprint.nu),
        sums,
        (float(size_vcpus), float(cap_vcpus), float(step_vcpus), float(worth)),
    )
    footprint.vcpus, footprint.cost = float(sums[VCPUS]), float(sums[COST])


@njit(cache=True)
def _fill(
    figures: Figures,
    choices: Columns,
    counts: Floats,
    pools: Pools,
    sums: Floats,
    goal: tuple[float, float, float, float],
) -> None:
    _grow(figures, choices, counts, pools, sums, goal)
    changed = False
    for _ in range(MOST_EXCHANGES):
        choice, less, other, more = _best_exchange(figures, choices, counts, pools, sums, goal[2])
        if choice < 0:
            break
        _add(choices, counts, pools, sums, choice, -less)
        _add(choices, counts, pools, sums, other, more)
        changed = True
    if changed:
        _grow(figures, choices, counts, pools, sums, goal)


@njit(cache=True)
def _add(choices: Columns, counts: Floats, pools: Pools, sums: Floats, choice: int, more: float) -> None:
    """Hold so many machines more of a choice."""
    pool_of, _, price, nu, vcpus, loss = choices
    pool = pool_of[choice]
    counts[choice] += more
    pools[0][pool] += more
    pools[1][pool] += more * loss[choice]
    pools[2][pool] += more * nu[choice]
    sums[VCPUS] += more * vcpus[choice]
    sums[COST] += more * price[choice]


@njit(cache=True)
def _grow(
    figures: Figures,
    choices: Columns,
    counts: Floats,
    pools: Pools,
    sums: Floats,
    goal: tuple[float, float, float, float],
) -> None:
    """goal: size, cap and step (vCPUs), worth of work that would cost more otherwise."""
    _, most, price, _, vcpus, _ = choices
    size_vcpus, cap_vcpus, step_vcpus, worth = goal
    more, values = np.empty(len(counts)), np.empty(len(counts))
    while len(counts) and sums[VCPUS] < cap_vcpus - 1e-9:
        needed = sums[VCPUS] < size_vcpus - 1e-9
        room = (size_vcpus if needed else cap_vcpus) - sums[VCPUS]
        for i in range(len(counts)):
            step = np.ceil(min(step_vcpus, room) / vcpus[i] - 1e-9)
            fits = min(step, np.floor((cap_vcpus - sums[VCPUS]) / vcpus[i] + 1e-9))
            more[i] = max(0.0, min(fits, most[i] - counts[i]))
        values_with_more(figures, choices, pools, sums[VCPUS], sums[COST], more, values)
        choice = values.argmin()
        best = values[choice]
        if not np.isfinite(best):
            return
        if not needed:
            now = footprint_value(figures, pools[0], pools[1], pools[2], sums[VCPUS], sums[COST])
            if best >= now:
                added = sums[COST] + more[choice] * price[choice]
                work, then = sums[COST] / now, added / best
                if then <= work or (added - sums[COST]) / (then - work) > worth:
                    return
        _add(choices, counts, pools, sums, choice, more[choice])


@njit(cache=True)
def _best_exchange(
    figures: Figures, choices: Columns, counts: Floats, pools: Pools, sums: Floats, step_vcpus: float
) -> tuple[int, float, int, float]:
    """(choice, machines less, other choice, machines more) that lowers E most; choice -1: nothing does."""
    _, most, price, nu, vcpus, loss = choices
    least = footprint_value(figures, pools[0], pools[1], pools[2], sums[VCPUS], sums[COST])
    least *= 1.0 - LEAST_GAIN
    best, best_less, best_other, best_more = -1, 0.0, -1, 0.0
    used = np.flatnonzero(counts > 0.0)
    alone = price[used] / (nu[used] * np.maximum(1.0 - loss[used] * figures[2], 1e-3))
    more, values = np.empty(len(counts)), np.empty(len(counts))
    for choice in used[np.argsort(-alone, kind="mergesort")][:MOST_WEIGHED]:
        held = counts[choice]
        first = min(max(1.0, step_vcpus // vcpus[choice]), held)
        for turn in range(1 if first == held else 2):
            less = first if turn == 0 else held
            freed = less * vcpus[choice]
            _add(choices, counts, pools, sums, choice, -less)
            for i in range(len(counts)):
                fits = min(np.floor(freed / vcpus[i] + 1e-9), most[i] - counts[i])
                enough = fits * vcpus[i] >= freed - 1e-9
                more[i] = max(0.0, fits) if enough and i != choice else 0.0
            values_with_more(figures, choices, pools, sums[VCPUS], sums[COST], more, values)
            _add(choices, counts, pools, sums, choice, less)
            other = values.argmin()
            if values[other] < least:
                least = values[other]
                best, best_less, best_other, best_more = int(choice), less, int(other), more[other]
    return best, best_less, best_other, best_more
