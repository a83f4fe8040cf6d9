"""The units of a clock that each machine computes under a view: in proportion to its weight, with the fewest moves.

A weight is the number of cores (or GPUs) that a machine computes with or, where clocks are planned, its measured
speed. With equal weights whole slices are dealt (`placement`), because a share of whole slices is made of the fewest
sums; not where clocks are planned and no machines count as alike.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from agileml.core.protocol.deal import share_of_slices, workers_of_slices
from agileml.core.protocol.job import Job
from agileml.core.protocol.view import NOBODY, Share, View
from agileml.core.stage.placement import Placement
from straggler.coverage import ranges
from straggler.lbbsp.unit_sets import units_of_counts

STEPS = 16  # of a share, where clocks are planned and sums are as large as the parameters
NEAR = 0.1  # a weight that differs less from the present share leaves the share as it is


def share_and_previous(
    job: Job, view: View | None, placement: Placement, weights: Mapping[str, float]
) -> tuple[Share, tuple[str, ...]]:
    """The share of the next view, and by slice the machine that computed it before and still has its items.

    `weights`: of machines; one that is not listed has the mean of the others.
    """
    workers = tuple(dict.fromkeys(placement.worker))
    filled = filled_weights(workers, weights)
    deals_slices = job.balancer is None or job.alike > 1.0
    if deals_slices and len(set(filled.values())) == 1:
        return share_of_slices(job, placement.worker), placement.previous
    home = _home(job, view, workers) if view is not None else share_of_slices(job, placement.worker)
    held = {worker: units.bit_count() for worker, units in home if worker in filled}
    step = _step(job, len(workers))
    held_steps = {worker: units // step for worker, units in held.items()}
    counts = counts_by_weight(job.units // step, _kept_near(filled, held), held_steps)
    units = units_of_counts(home, {worker: steps * step for worker, steps in counts.items()})
    share = tuple((worker, units[worker]) for worker in workers)
    if view is None:
        return share, placement.previous
    return share, _previous(job, view, share, workers)


def _step(job: Job, workers: int) -> int:
    """The units of which a share is a multiple. A clock's plan starts from the share: with coarse ones it can have few
    sums, and a share by itself holds for a clock or two."""
    if job.balancer is None or not job.sends_whole_sums:
        return 1
    return 1 << max(0, (job.units // (STEPS * workers)).bit_length() - 1)


def counts_by_weight(total: int, weights: Mapping[str, float], held: Mapping[str, int]) -> dict[str, int]:
    """Units per machine, at least one each, so that the largest count / weight is as small as can be.

    Of several such counts the one that moves less is chosen: in a tie a unit stays with its machine.
    """
    assert len(weights) <= total
    assert all(weight > 0 for weight in weights.values()), weights
    whole = sum(weights.values())
    counts = {worker: max(1, int(total * weight / whole)) for worker, weight in weights.items()}
    left = total - sum(counts.values())

    def next_end(worker: str) -> tuple[float, bool, int]:
        """The sort key: when the machine would end one unit more; in a tie, whether the unit would have to move."""
        return (counts[worker] + 1) / weights[worker], counts[worker] >= held.get(worker, 0), order[worker]

    order = {worker: index for index, worker in enumerate(weights)}
    names = list(weights)
    heap = [next_end(worker) for worker in names] if left > 0 else []
    heapq.heapify(heap)
    for _ in range(left):
        chosen = names[heap[0][2]]
        counts[chosen] += 1
        heapq.heapreplace(heap, next_end(chosen))
    for _ in range(-left):  # one unit for each machine was more than its share
        most = [worker for worker in names if counts[worker] > 1]
        counts[max(most, key=lambda worker: counts[worker] / weights[worker])] -= 1
    return counts


def filled_weights(workers: Sequence[str], weights: Mapping[str, float]) -> dict[str, float]:
    """The machines' weights; one that is not listed has the mean of the others."""
    known = [weights[worker] for worker in workers if worker in weights]
    usual = sum(known) / len(known) if known else 1.0
    return {worker: weights.get(worker, usual) for worker in workers}


def _kept_near(weights: Mapping[str, float], held: Mapping[str, int]) -> dict[str, float]:
    """The weights; a machine whose units are about right for its weight gets the weight of its units, so that none
    moves without need."""
    ratios = sorted(weights[worker] / units for worker, units in held.items() if units)
    if not ratios:
        return dict(weights)
    scale = ratios[len(ratios) // 2]
    found = dict(weights)
    for worker, units in held.items():
        if abs(weights[worker] / (units * scale) - 1.0) <= NEAR:
            found[worker] = units * scale
    return found


def _home(job: Job, view: View, workers: Sequence[str]) -> Share:
    """The present share; units of a machine that is gone count as those of the machine that computed their slice
    before, if it works (thesis 4.2, figure 4.4)."""
    found, there = dict(view.share), set(workers)
    for worker, units in view.share:
        if worker in there:
            continue
        slices = {
            index
            for start, stop in ranges(units)
            for index in range(start // job.parts, -(-stop // job.parts))
        }
        for index in sorted(slices):
            before = view.previous[index]
            if before in there:
                back = units & job.units_of_slice(index)
                found[worker] &= ~back
                found[before] = found.get(before, 0) | back
    return tuple(found.items())


def _previous(job: Job, view: View, share: Share, workers: Sequence[str]) -> tuple[str, ...]:
    there: set[str] = set(workers)
    by_slice = zip(
        workers_of_slices(job, view.share), view.previous, workers_of_slices(job, share), strict=True
    )
    found = []
    for now, before, to in by_slice:
        last = now if to != now and now in there else before
        found.append(last if last in there and last != to else NOBODY)
    return tuple(found)
