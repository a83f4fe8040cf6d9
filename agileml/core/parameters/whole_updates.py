"""Summed updates of dense tables without gaps: an all-reduce adds them up, and a replica takes its step along the
sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agileml.application import Array, DeviceVector
from agileml.core.parameters.arena import joined
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Layout, Sparse


def whole_blocks(layout: Layout, partition: int, total: Contribution) -> tuple[Array | DeviceVector, ...]:
    """The blocks of a contribution to dense tables, -0.0 where it has nothing: adding that changes no number. Empty for
    tables that no unit updates."""
    found: list[Array | DeviceVector] = []
    for index, (table, block) in enumerate(zip(layout.tables, total.blocks, strict=True)):
        start, stop = layout.range_of(index, partition)
        if not table.update.is_by_units:
            stop = start
        assert not isinstance(block, Sparse), table
        found.append(np.full(stop - start, -0.0, table.dtype) if block is None else block.values)
    return tuple(found)


def resident_updates(
    layout: Layout, sums: Sequence[Sequence[Array | DeviceVector]]
) -> dict[str, Array | DeviceVector]:
    """The updates of the resident tables, flat and whole: without a copy where the partitions' arrays are neighbours.

    sums: by partition, then by table, as `whole_blocks` gives them.
    """
    return {
        table.name: _whole([blocks[index] for blocks in sums])
        for index, table in enumerate(layout.tables)
        if table.resident and table.update.is_by_units
    }


def _whole(pieces: Sequence[Array | DeviceVector]) -> Array | DeviceVector:
    vectors = [piece for piece in pieces if isinstance(piece, DeviceVector)]
    if vectors:
        # A machine has its part of a clock on its device in all partitions, or, where it computed nothing, in none.
        assert len(vectors) == len([piece for piece in pieces if piece.size]), [type(p) for p in pieces]
        return vectors[0].joined(vectors)
    arrays = [piece for piece in pieces if isinstance(piece, np.ndarray)]
    whole = arrays[0] if len(arrays) == 1 else joined(arrays)
    return np.concatenate(arrays) if whole is None else whole.reshape(-1)
