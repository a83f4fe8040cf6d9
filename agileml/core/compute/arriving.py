"""The parameters of a computation that begins before all of them are here."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence

from agileml.application import Array
from agileml.core.parameters.layout import Layout


class ArrivingBlocks:
    """Brings the blocks of partitions to their places in whole tables, each when it is first waited for.

    wholes: flat arrays of the dense tables, by name. take(p): partition p's blocks; returns when they are here.
    """

    def __init__(
        self, layout: Layout, wholes: Mapping[str, Array], take: Callable[[int], Sequence[Array]]
    ) -> None:
        self._layout = layout
        self._wholes = wholes
        self._take = take
        self._index = {table.name: index for index, table in enumerate(layout.tables)}
        self._missing = set(range(layout.partitions))

    def wait(self, table: str, start: int, stop: int) -> None:
        """Return when elements [start, stop) of a table are at their places."""
        if not self._missing or start >= stop:
            return
        cuts = self._layout.cuts(self._index[table])
        first, last = bisect_right(cuts, start) - 1, bisect_left(cuts, stop)
        for partition in range(first, last):
            if partition in self._missing and cuts[partition] < cuts[partition + 1]:
                self._bring(partition)

    def _bring(self, partition: int) -> None:
        for index, (table, block) in enumerate(zip(self._layout.tables, self._take(partition), strict=True)):
            first, last = self._layout.range_of(index, partition)
            bring(block, self._wholes[table.name][first:last])
        self._missing.discard(partition)


def bring(block: Array, place: Array) -> None:
    """Copy a block to its place, unless it was received there."""
    at = place.__array_interface__["data"][0]
    if block.__array_interface__["data"][0] != at or block.nbytes != place.nbytes:
        place[:] = block
