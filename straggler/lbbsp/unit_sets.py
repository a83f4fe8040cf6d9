"""From counts to sets: which units each worker gets, so that as few as possible change hands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from straggler.coverage import Units, ranges, span, union


def units_of_counts(home: Sequence[tuple[str, Units]], counts: Mapping[str, int]) -> dict[str, Units]:
    """The units of each worker in `counts`, `counts[w]` of them, with the fewest moves from `home`.

    `home`: (worker, units) pairs, disjoint; together they are the units to deal. A worker with too many gives its tail,
    its highest units; one that is not in `counts` gives all. Loose units go to those with too few in ascending order
    of both, which keeps what moves near to what its new worker has. Raises ValueError when the counts do not add up.
    """
    total = sum(units.bit_count() for _, units in home)
    if sum(counts.values()) != total or any(count < 0 for count in counts.values()):
        raise ValueError(f"counts are {dict(counts)}; expected numbers of at least 0 that sum to {total}")
    dealt = dict.fromkeys(counts, 0)
    loose = 0
    for worker, units in home:
        kept = _head(units, counts.get(worker, 0))
        loose |= units & ~kept
        if worker in dealt:
            dealt[worker] |= kept
    short = [worker for worker in counts if dealt[worker].bit_count() < counts[worker]]
    middle = total // 2  # where a worker without units is taken to be
    short.sort(key=lambda worker: dealt[worker].bit_length() if dealt[worker] else middle)
    pieces = iter(ranges(loose))
    start, stop = 0, 0
    for worker in short:
        wanted = counts[worker] - dealt[worker].bit_count()
        got = []
        while wanted:
            if start == stop:
                start, stop = next(pieces)
            end = min(stop, start + wanted)
            got.append(span(start, end))
            wanted -= end - start
            start = end
        dealt[worker] |= union(got)
    return dealt


def _head(units: Units, count: int) -> Units:
    """The lowest `count` units of a set, or all of it."""
    if units.bit_count() <= count:
        return units
    kept = 0
    for start, stop in ranges(units):
        end = min(stop, start + count)
        kept |= span(start, end)
        count -= end - start
    return kept
