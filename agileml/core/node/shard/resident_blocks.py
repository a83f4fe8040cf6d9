"""The blocks of one partition that lie in the replica of the application, where the machine computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agileml.application import Array, PendingCopy, Replica, Table, Update
from agileml.core.parameters.layout import Layout


def is_held_by_owner(table: Table) -> bool:
    """True for a table that only the replica changes, such as an optimizer's state. Where machines share the state,
    each has only the part of the partitions that it owns."""
    return table.resident and table.update is Update.NONE


def values_alone(layout: Layout, blocks: Sequence[Array]) -> tuple[Array, ...]:
    """A partition's blocks without those that only its owner holds, which are empty."""
    return tuple(
        np.empty(0, table.dtype) if is_held_by_owner(table) else block
        for table, block in zip(layout.tables, blocks, strict=True)
    )


class ResidentBlocks:
    """Reads a partition's part of the resident tables, and knows whether its last copy is whole."""

    def __init__(self, replica: Replica, layout: Layout, partition: int, *, is_owner: bool) -> None:
        """is_owner: this machine holds the tables that only owners hold."""
        self._replica = replica
        self._is_owner = is_owner
        self._layout = layout
        self._partition = partition
        self._copying: PendingCopy | None = None
        self._clock = -1  # of the last copy
        self._is_finite = False  # no number of the last whole copy is NaN or infinite

    def now(self, index: int) -> Array:
        """The present block of a resident table."""
        return self._replica.read(*self._range(index))

    def copied(self, blocks: Sequence[Array], clock: int) -> tuple[Array, ...]:
        """`blocks`, with copies of the resident tables' blocks at `clock`. The copies are whole once `is_copied` is
        true."""
        tables = self._layout.tables
        wanted = [self._range(index) for index, table in enumerate(tables) if table.resident]
        self._copying, self._clock, self._is_finite = self._replica.copy(wanted), clock, False
        copies = iter(self._copying.arrays)
        return tuple(next(copies) if t.resident else b for t, b in zip(tables, blocks, strict=True))

    def is_copied(self, *, waits: bool) -> bool:
        """True when the last copy is whole. waits: wait until it is."""
        if self._copying is not None:
            if waits:
                self._copying.wait()
            elif not self._copying.is_done():
                return False
            self._is_finite, self._copying = self._copying.is_finite(), None
        return True

    def is_finite_at(self, clock: int) -> bool:
        """True when the last whole copy is that of `clock`, and none of its numbers is NaN or infinite."""
        return self._clock == clock and self._is_finite

    def _range(self, index: int) -> tuple[str, int, int]:
        table = self._layout.tables[index]
        start, stop = self._layout.range_of(index, self._partition)
        return table.name, start, stop if self._is_owner or not is_held_by_owner(table) else start
