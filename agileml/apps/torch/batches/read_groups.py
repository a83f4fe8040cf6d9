"""The order of items that lie together in files: a pass goes through groups of them, and shuffles some at a time.

Reading one item of a row group costs as much as reading all of it, so an order over all items would read every group
once for each of its items. Instead groups come in a new order on every pass, and the items of as many
neighbours as have `together` items are shuffled. Every item still comes once a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agileml.application import Array


@dataclass(frozen=True)
class ReadGroups:
    """sizes: the items of each group, in order of their numbers. together: at least so many are shuffled together."""

    sizes: tuple[int, ...]
    together: int

    def shuffled(self, rng: np.random.Generator) -> Array:
        """All items, group after group, the groups in a random order."""
        ends = np.cumsum(self.sizes)
        return np.concatenate(
            [np.arange(ends[g] - self.sizes[g], ends[g]) for g in rng.permutation(len(ends))]
        )

    def parts(self, numbers: Array) -> list[int]:
        """The sizes of the parts of a slice's items that are of one group each. numbers: a piece of `shuffled`."""
        group = np.searchsorted(np.cumsum(self.sizes), numbers, side="right")
        borders = np.flatnonzero(np.diff(group)) + 1
        return np.diff([0, *borders, len(numbers)]).tolist()

    def order(self, numbers: Array, rng: np.random.Generator) -> Array:
        """The places of a slice's items in the order of a pass."""
        return windowed(self.parts(numbers), self.together, rng)


def windowed(sizes: Sequence[int], together: int, rng: np.random.Generator) -> Array:
    """The places 0 ... sum(sizes), part after part in a random order, those of neighbours shuffled together as soon as
    they are at least `together`."""
    starts = np.cumsum([0, *sizes])
    found, window, count = [], list[Array](), 0
    order = rng.permutation(len(sizes))
    for position, part in enumerate(order):
        window.append(np.arange(starts[part], starts[part + 1]))
        count += sizes[part]
        if count >= together or position == len(order) - 1:
            found.append(rng.permutation(np.concatenate(window)))
            window, count = [], 0
    return np.concatenate(found) if found else np.empty(0, np.int64)
