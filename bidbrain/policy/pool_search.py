"""The search for the footprint of least E: machines are added step by step, then exchanged while that lowers E.

Compiled: a decision weighs some thousand footprints. State that the loops change travels in arrays: `Pools` holds
machines, losses and work per hour by pool and machines by place, and `sums` the vCPUs and the cost per hour of the
footprint, without its traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numba import njit

from bidbrain.policy.pool_model import (
    Choices,
    Columns,
    Figures,
    Floats,
    Footprint,
    Pools,
    Terms,
    carried_with,
    footprint_value,
    values_with_more,
)

MOST_EXCHANGES = 12
MOST_WEIGHED = 6  # choices that an exchange may give up, the dearest
LEAST_GAIN = 1e-6  # of E: below it an exchange is noise
VCPUS, COST = 0, 1  # of `sums`


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
        footprint.pools,
        sums,
        (float(size_vcpus), float(cap_vcpus), float(step_vcpus), float(worth)),
    )
    footprint.vcpus, footprint.cost = float(sums[VCPUS]), float(sums[COST])


def least_footprint(
    terms: Terms, choices: Choices, goal: tuple[float, float, float, float], regions: Sequence[str]
) -> Footprint:
    """The footprint of least E that `fill` finds. goal: as its arguments; regions: of each choice.

    Where traffic costs something, one machine alone in another region pays for the way to all others, while a fleet
    that moves there as a whole does not. So the search also begins from a fleet in each region alone.
    """
    best = Footprint(terms, choices)
    fill(best, *goal)
    if choices.roads is None or not choices.roads.rates.any():
        return best
    own, size = np.array(regions), min(goal[0], best.vcpus) - 1e-9
    alone = []
    for region in sorted(set(regions)):
        there = Footprint(terms, replace(choices, most=np.where(own == region, choices.most, 0.0)))
        fill(there, *goal)
        alone.append(there)
    # The fullest, of those the one of least E, may take more from the other regions.
    there = min(alone, key=lambda each: (-min(each.vcpus, size), each.value))
    found = Footprint(terms, choices, there.counts)
    fill(found, *goal)
    return found if found.vcpus >= size and found.value < best.value else best


def without_dear(footprint: Footprint, dear: Sequence[float]) -> Footprint:
    """The footprint without choices whose machines, each with its share of their traffic, cost `dear` or more."""
    for i in np.flatnonzero(footprint.counts > 0.0).tolist() if footprint.traffic else ():
        others = footprint.counts.copy()
        others[i] = 0.0
        rest = Footprint(footprint.terms, footprint.choices, others)
        each = (footprint.traffic - rest.traffic) / footprint.counts[i]
        if footprint.choices.price[i] + each >= dear[i]:
            return without_dear(rest, dear)
    return footprint


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
    pool_of, _, price, nu, vcpus, loss, place, _ = choices
    pool = pool_of[choice]
    counts[choice] += more
    pools[0][pool] += more
    pools[1][pool] += more * loss[choice]
    pools[2][pool] += more * nu[choice]
    pools[3][place[choice]] += more
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
    _, most, price, _, vcpus, _, place, rates = choices
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
            cost = sums[COST] + carried_with(pools[3], rates, 0, 0.0)
            now = footprint_value(figures, pools[0], pools[1], pools[2], sums[VCPUS], cost)
            if best >= now:
                traffic = carried_with(pools[3], rates, place[choice], more[choice])
                added = sums[COST] + more[choice] * price[choice] + traffic
                work, then = cost / now, added / best
                if then <= work or (added - cost) / (then - work) > worth:
                    return
        _add(choices, counts, pools, sums, choice, more[choice])


@njit(cache=True)
def _best_exchange(
    figures: Figures, choices: Columns, counts: Floats, pools: Pools, sums: Floats, step_vcpus: float
) -> tuple[int, float, int, float]:
    """(choice, machines less, other choice, machines more) that lowers E most; choice -1: nothing does."""
    _, most, price, nu, vcpus, loss, place, rates = choices
    cost = sums[COST] + carried_with(pools[3], rates, 0, 0.0)
    least = footprint_value(figures, pools[0], pools[1], pools[2], sums[VCPUS], cost)
    least *= 1.0 - LEAST_GAIN
    best, best_less, best_other, best_more = -1, 0.0, -1, 0.0
    alone = np.full(len(counts), -np.inf)  # what the work of one machine costs, with its traffic
    for i in range(len(counts)):
        if counts[i] > 0.0:
            traffic = cost - sums[COST] - carried_with(pools[3], rates, place[i], -1.0)
            alone[i] = (price[i] + traffic) / (nu[i] * max(1.0 - loss[i] * figures[2], 1e-3))
    more, values = np.empty(len(counts)), np.empty(len(counts))
    for _ in range(min(MOST_WEIGHED, len(counts))):
        choice = int(alone.argmax())
        if alone[choice] == -np.inf:
            break
        alone[choice] = -np.inf
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
                best, best_less, best_other, best_more = choice, less, int(other), more[other]
    return best, best_less, best_other, best_more
