"""Which neighbouring units of a clock the machines of a stage compute, so that they have few sums to exchange.

A machine sends one sum for each aligned subtree of its units, because sums are added up along the tree. Three machines
compute 16 units equally fast as 6, 5 and 5 or as 6, 6 and 4: the first are 7 sums and 3 of one machine, the others 5
and 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, count, pairwise

from agileml.core.stage.shares import counts_by_weight
from straggler.coverage import subtrees_between

MANY = 32  # machines of a stage; with more the search may take seconds


def unit_ranges(units: int, weights: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """By machine the first of its units and the one behind its last, in the order of `weights`.

    No machine is slower (units / weight) than with the counts of `counts_by_weight`. Of such ranges the machine with
    the most sums has as few as can be, then all machines together do, and then the first ones have more units. More
    than MANY machines have those counts.
    """
    counts = counts_by_weight(units, weights, {})
    if len(counts) > MANY:
        return dict(zip(counts, pairwise(accumulate(counts.values(), initial=0)), strict=True))
    limits = _limits(counts, weights)
    ends = next(found for most in count(1) if (found := _fewest(units, limits, most)) is not None)
    return dict(zip(weights, pairwise((0, *ends)), strict=True))


@lru_cache(maxsize=1024)
def exchanged(units: int, machines: int) -> float:
    """The bytes that the busiest link of a stage carries each way in a clock, over those of the stage's layers, where
    its machines are alike and own as much: sums to the owners, then the new weights back."""
    sums = [
        subtrees_between(*ends)
        for ends in unit_ranges(units, {str(each): 1.0 for each in range(machines)}).values()
    ]
    pushed = max(max(own * (machines - 1), sum(sums) - own) for own in sums)
    return (pushed + machines - 1) / machines


def _limits(counts: Mapping[str, int], weights: Mapping[str, float]) -> list[int]:
    """The most units of each machine. One that is so slow that its only unit takes longest limits no other."""
    slowest = max([each / weights[name] for name, each in counts.items() if each > 1], default=0.0)
    limits = []
    for name, each in counts.items():
        limit = max(each, int(slowest * weights[name]))
        limits.append(limit if limit / weights[name] <= slowest else each)
    return limits


def _fewest(units: int, limits: Sequence[int], most: int) -> tuple[int, ...] | None:
    """The ends of the ranges with the fewest sums, at most `most` of each machine; None: there are no such ranges."""
    spare = sum(limits) - units
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}  # by end: the sums so far, and the ends
    for behind, limit in enumerate(limits, 1):
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        for start, (total, ends) in best.items():
            for stop in _stops(start, limit, spare, units - (len(limits) - behind)):
                own, option = subtrees_between(start, stop), (*ends, stop)
                known, as_known = found.get(stop, (total + own + 1, option))
                if own <= most and (total + own < known or (total + own == known and option > as_known)):
                    found[stop] = total + own, option
        best = found
    return best[units][1] if units in best else None


def _stops(start: int, limit: int, spare: int, last: int) -> Iterator[int]:
    """Where a range may end: it has a unit at least, and leaves out no more than there is to spare."""
    yield from range(start + max(1, limit - spare), min(start + limit, last) + 1)
