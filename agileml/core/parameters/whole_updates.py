"""Summed updates of dense tables without gaps: an all-reduce adds them up, and a replica takes its step along the
sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agileml.application import Array, DeviceVector, Table, Update
from agileml.core.parameters.arena import joined
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Block, Layout, Sparse, dense_block


def whole_blocks(layout: Layout, partition: int, total: Contribution) -> tuple[Array | DeviceVector, ...]:
    """The blocks of a contribution to dense tables, -0.0 where it has nothing: adding that changes no number. Empty for
    tables that no unit updates. `summed_blocks` finds what no machine had anything for."""
    found: list[Array | DeviceVector] = []
    for index, (table, block) in enumerate(zip(layout.tables, total.blocks, strict=True)):
        start, stop = layout.range_of(index, partition)
        if not table.update.is_by_units:
            stop = start
        assert not isinstance(block, Sparse), table
        values = np.full(stop - start, -0.0, table.dtype) if block is None else block.values
        if block is not None and _takes_a_step(table) and not _has_update(values):
            values = np.zeros(stop - start, table.dtype)  # an update of zeros is one
        found.append(values)
    return tuple(found)


def summed_blocks(
    tables: Sequence[Table], blocks: Sequence[Array | DeviceVector]
) -> tuple[Block | None, ...]:
    """The blocks of the machines' contributions that were added up as `whole_blocks` gave them; None: there is no step
    to take. That is so for a resident table, for one without elements here, and for one that no unit updated."""
    return tuple(
        None
        if table.resident or not block.size or (_takes_a_step(table) and not _has_update(block))
        else dense_block(block)
        for table, block in zip(tables, blocks, strict=True)
    )


def _takes_a_step(table: Table) -> bool:
    """An optimizer steps the table as a whole; of one that has ranges it looks at each (`Range`)."""
    return table.update is Update.GRADIENT and not table.ranges and not table.resident


def _has_update(block: Array | DeviceVector) -> bool:
    """Not all of it is -0.0. Most often the first element says so."""
    assert isinstance(block, np.ndarray), type(block)
    some = block[:1]
    return any(bool(part.any() or not np.signbit(part).all()) for part in (some, block))


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
