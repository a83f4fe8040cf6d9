"""Pushing a partition's contribution as soon as it is final, while the rest is still being computed.

A backward pass ends in the last layers first. A partition that holds one dense table alone is final when backward has
passed the layers in it; pushing, adding and applying it then overlap with the rest of backward.
"""

from __future__ import annotations

from collections.abc import Callable

from agileml.application import Array, DeviceVector
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Layout, dense_block

Emit = Callable[[int, Contribution], None]


def can_stream(layout: Layout) -> bool:
    """True if every partition but the first holds a part of the first table alone, among those that units update: with
    more of them, a partition is final only when all its blocks are."""
    if any(table.sparse for table in layout.tables):
        return False
    updated = [index for index, table in enumerate(layout.tables) if table.update.is_by_units]
    return updated == [0] or layout.gathers


class Stream:
    """Emits partitions as ranges of the table become final. Partition 0 comes last, because it carries the loss."""

    def __init__(self, layout: Layout, emit: Emit) -> None:
        assert can_stream(layout)
        self._layout = layout
        self._emit = emit
        self._missing = [stop - start for start, stop in map(self._range, range(layout.partitions))]
        self.emitted: set[int] = set()

    def _range(self, partition: int) -> tuple[int, int]:
        return self._layout.range_of(0, partition)

    def ready(self, table: str, values: Array | DeviceVector, start: int, stop: int) -> None:
        """Elements start .. stop - 1 of the flat updates are final; ranges do not overlap."""
        assert table == self._layout.tables[0].name, table
        for partition in range(1, self._layout.partitions):
            first, last = self._range(partition)
            within = min(stop, last) - max(start, first)
            if within <= 0:
                continue
            self._missing[partition] -= within
            assert self._missing[partition] >= 0, (partition, start, stop)
            if self._missing[partition] == 0:
                self.emitted.add(partition)
                others = (None,) * (len(self._layout.tables) - 1)
                self._emit(partition, Contribution((dense_block(values[first:last]), *others)))
