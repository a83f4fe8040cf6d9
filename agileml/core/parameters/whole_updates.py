"""Summed updates of dense tables without gaps: an all-reduce adds them up, and a replica takes its step along the
sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agileml.application import Array
from agileml.core.parameters.arena import joined
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense, Layout


def whole_blocks(layout: Layout, partition: int, total: Contribution) -> tuple[Array, ...]:
    """The blocks of a contribution to dense tables, -0.0 where it has nothing: adding that changes no number. Empty for
    tables that no unit updates."""
    found = []
    for index, (table, block) in enumerate(zip(layout.tables, total.blocks, strict=True)):
        start, stop = layout.range_of(index, partition)
        if not table.update.is_by_units:
            stop = start
        assert block is None or isinstance(block, Dense), table
        found.append(np.full(stop - start, -0.0, table.dtype) if block is None else block.values)
    return tuple(found)


def resident_updates(layout: Layout, sums: Sequence[Sequence[Array]]) -> dict[str, Array]:
    """The updates of the resident tables, flat and whole: without a copy where the partitions' arrays are neighbours.

    sums: by partition, then by table, as `whole_blocks` gives them.
    """
    found = {}
    for index, table in enumerate(layout.tables):
        if table.resident and table.update.is_by_units:
            pieces = [blocks[index] for blocks in sums]
            whole = pieces[0] if len(pieces) == 1 else joined(pieces)
            found[table.name] = np.concatenate(pieces) if whole is None else whole.reshape(-1)
    return found
