"""Which items a unit takes.

A minibatch of B items is cut over the U units of a clock: unit u takes places [u B // U, (u + 1) B // U). A slice
has a fixed share of the items, in proportion to its places: none if it has no place. It walks through them in a new
order on every pass, and begins the next pass where the last one ends, so every item comes once a pass. The order
depends on the seed, the slice, the minibatch's size and the data set alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agileml.application import Array, Settings, Unit
from agileml.apps.data import Draw
from agileml.apps.torch.batches.loader import Request
from agileml.apps.torch.batches.read_groups import ReadGroups


@dataclass
class ExampleSlice:
    """The items of a slice: `numbers` of the training set, and the order of the pass that was used last."""

    numbers: Array
    order: tuple[int, Array] | None = None


@dataclass(frozen=True)
class Minibatches:
    """The items of each unit of a clock, of `count` training items, `batch` a clock.

    groups: items that are read together, where the data set has such.
    """

    settings: Settings
    count: int
    batch: int
    groups: ReadGroups | None = None

    def share(self, slice_index: int) -> ExampleSlice:
        """The items of a slice, fixed for the run: as many, up to rounding, for each of its places in the minibatch."""
        rng = self.settings.rng(Draw.SHUFFLE)
        order = rng.permutation(self.count) if self.groups is None else self.groups.shuffled(rng)
        start, stop = (place * self.count // self.batch for place in self._places(slice_index))
        return ExampleSlice(order[start:stop])

    @property
    def first_slice(self) -> int:
        """The first slice that has places in the minibatch: those before it have no items."""
        return next(s for s in range(self.settings.slices) if self._places(s)[1])

    def range_of(self, unit: Unit) -> tuple[int, int]:
        """(start, stop) of the unit's places in the clock's minibatch."""
        units, number = self.settings.slices * unit.parts, unit.slice * unit.parts + unit.part
        return number * self.batch // units, (number + 1) * self.batch // units

    def numbers(self, unit: Unit, share: ExampleSlice) -> Array:
        """The items of a unit, in order."""
        first, last = self._places(unit.slice)
        start, stop = (unit.clock * (last - first) - first + place for place in self.range_of(unit))
        here = len(share.numbers)
        pieces = []
        while here and start < stop:  # pass by pass
            turn, at = divmod(start, here)
            end = min(here, at + stop - start)
            pieces.append(share.numbers[self._order(unit.slice, turn, share)[at:end]])
            start += end - at
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def request(
        self, units: Sequence[Unit], shares: Sequence[ExampleSlice], micro_batch: int | None
    ) -> Request:
        """The batches of some units of a clock: their items in order, cut into micro batches."""
        numbers = np.concatenate([self.numbers(u, share) for u, share in zip(units, shares, strict=True)])
        most = micro_batch or max(1, len(numbers))
        pieces = tuple(numbers[start : start + most] for start in range(0, len(numbers), most))
        first = units[0]
        name = tuple(unit.slice * unit.parts + unit.part for unit in units)
        key = (self.settings.seed, first.clock, first.slice, first.part)
        seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))
        return Request(first.clock, name, pieces, seed)

    def _places(self, slice_index: int) -> tuple[int, int]:
        """(start, stop) of the slice's places in the minibatch."""
        slices = self.settings.slices
        return slice_index * self.batch // slices, (slice_index + 1) * self.batch // slices

    def _order(self, slice_index: int, turn: int, share: ExampleSlice) -> Array:
        if share.order is None or share.order[0] != turn:
            # Zeros at the end have never counted here: with them runs would have other bits than before.
            key = (slice_index, turn) if turn else (slice_index,) if slice_index else ()
            rng = self.settings.rng(Draw.SHUFFLE, *key)
            groups, numbers = self.groups, share.numbers
            order = rng.permutation(len(numbers)) if groups is None else groups.order(numbers, rng)
            share.order = turn, order
        return share.order[1]
