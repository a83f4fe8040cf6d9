"""Swaps slices between workers so that they have fewer sums to send, without moving one slice more.

In a deterministic job a worker sends a sum for each aligned subtree of its units, and each sum is as large as the
parameters. After some changes of members its slices lie apart: of 16 slices on two to eight workers, the one with the
most sums has three on average. Which slices move, and to whom, is open as long as their number is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from straggler.coverage import Units, count_subtrees

MOST_SLICES = 128  # with more the search takes longer than a change of members should


def with_fewer_sums(current: Sequence[str], dealt: Sequence[str]) -> tuple[str, ...]:
    """By slice the worker, as `dealt` but for swaps: each worker has as many slices, and no more slices move from their
    `current` workers. No single swap makes the sum of the squares of all workers' numbers of sums less."""
    if len(dealt) > MOST_SLICES:
        return tuple(dealt)
    deal = _Deal(current, dealt)
    while deal.improve():
        pass
    return tuple(deal.worker)


class _Deal:
    """A deal while its slices are swapped. `held`: by worker the set of its slices; `sums`: how many sums it sends."""

    def __init__(self, current: Sequence[str], dealt: Sequence[str]) -> None:
        self._current, self.worker = current, list(dealt)
        self._held: dict[str, Units] = dict.fromkeys(dealt, 0)
        for index, worker in enumerate(dealt):
            self._held[worker] |= 1 << index
        self._sums = {worker: sums(units) for worker, units in self._held.items()}

    def improve(self) -> bool:
        """Make the swaps that leave fewer sums, in one pass over all pairs. False: there was none."""
        before = tuple(self.worker)
        for one, worker in enumerate(before):
            if worker != self._current[one]:
                for other in self._partners(one):
                    self._swap_if_better(one, other)
        return tuple(self.worker) != before

    def _partners(self, one: int) -> Iterator[int]:
        """The slices that may swap with a slice that moves: others that move, and those that its former worker keeps,
        of which one then moves instead. Two workers with a sum each cannot have fewer."""
        for other, theirs in enumerate(self.worker):
            mine, was = self.worker[one], self._current[one]
            if theirs == mine or mine == was or (theirs == self._current[other] and theirs != was):
                continue
            if self._sums[mine] + self._sums[theirs] > 2:
                yield other

    def _swap_if_better(self, one: int, other: int) -> None:
        mine, theirs = self.worker[one], self.worker[other]
        both = 1 << one | 1 << other
        my_sums, their_sums = sums(self._held[mine] ^ both), sums(self._held[theirs] ^ both)
        if my_sums**2 + their_sums**2 < self._sums[mine] ** 2 + self._sums[theirs] ** 2:
            self.worker[one], self.worker[other] = theirs, mine
            self._held[mine] ^= both
            self._held[theirs] ^= both
            self._sums[mine], self._sums[theirs] = my_sums, their_sums


@lru_cache(maxsize=4096)
def sums(units: Units) -> int:
    """How many sums a worker with these slices sends: one for each aligned subtree."""
    return count_subtrees(units)
