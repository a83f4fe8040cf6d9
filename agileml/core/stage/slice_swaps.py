"""Swaps slices between workers so that they have fewer sums to send, without moving one slice more.

In a deterministic job a worker sends a sum for each aligned subtree of its units, and each sum is as large as the
parameters. After some changes of members its slices lie apart: of 16 slices on two to eight workers, the one with the
most sums has three on average. Which slices move, and to whom, is open as long as their number is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from straggler.coverage import Units

MOST_SLICES = 128  # with more the search takes longer than a change of members should


def with_fewer_sums(current: Sequence[str], dealt: Sequence[str]) -> tuple[str, ...]:
    """By slice the worker, as `dealt` but for swaps: each worker has as many slices, and no more slices move from their
    `current` workers. No single swap makes the sum of the squares of all workers' numbers of sums less."""
    if len(dealt) > MOST_SLICES:
        return tuple(dealt)
    found = list(dealt)
    held: dict[str, Units] = dict.fromkeys(dealt, 0)
    for index, worker in enumerate(dealt):
        held[worker] |= 1 << index
    while (swap := next(_better(current, found, held), None)) is not None:
        for index, worker in zip(swap, (found[swap[1]], found[swap[0]]), strict=True):
            held[found[index]] ^= 1 << index
            held[worker] ^= 1 << index
            found[index] = worker
    return tuple(found)


def _better(
    current: Sequence[str], dealt: Sequence[str], held: dict[str, Units]
) -> Iterator[tuple[int, int]]:
    """Pairs of slices that should swap their workers: two that move, or one that moves and one that its former worker
    keeps, which then moves instead."""
    squares = {worker: sums(units) ** 2 for worker, units in held.items()}
    for one in [index for index, worker in enumerate(dealt) if worker != current[index]]:
        mine = dealt[one]
        for other, theirs in enumerate(dealt):
            if theirs == mine or (theirs == current[other] and theirs != current[one]):
                continue
            both = 1 << one | 1 << other
            after = sums(held[mine] ^ both) ** 2 + sums(held[theirs] ^ both) ** 2
            if after < squares[mine] + squares[theirs]:
                yield one, other


def sums(units: Units) -> int:
    """How many aligned subtrees (`straggler.coverage`) a set is cut into: its units, less one for each node of the tree
    that is whole."""
    count, size = units.bit_count(), 1
    whole = units  # of each node of this height the lowest bit, where all of it is in the set
    while whole:
        whole &= whole >> size
        whole &= _starts(2 * size, units.bit_length())
        count -= whole.bit_count()
        size *= 2
    return count


def _starts(size: int, length: int) -> Units:
    """Every `size`-th bit below `length`."""
    return sum(1 << start for start in range(0, length, size))
