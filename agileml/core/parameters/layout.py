"""How tables are cut into partitions, and updates with them.

Every table is cut once into N contiguous blocks, one per partition. A sparse table is cut between rows. A dense table
is cut on multiples of 16 elements (64 bytes of float32): sums over such blocks have the same bits in whatever order
the vector unit takes them, and no two partitions share a cache line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from agileml.application import Array, DeviceVector, Table, Update

ALIGNMENT = 16
MOST_ROWS = int(np.iinfo(np.int32).max)  # of a block of a sparse table


@dataclass(frozen=True)
class Dense:
    """An update of a whole block, shape (elements,)."""

    values: Array


@dataclass(frozen=True)
class Sparse:
    """An update of some rows of a block: `rows` are int32, ascending, relative to the block; `values` (rows,
    columns). Of a whole table of more than `MOST_ROWS` rows they are int64."""

    rows: Array
    values: Array


@dataclass(frozen=True)
class OnDevice:
    """An update of a whole block that lies on a device, shape (elements,)."""

    values: DeviceVector


Block = Dense | Sparse | OnDevice


def dense_block(values: Array | DeviceVector) -> Dense | OnDevice:
    """An update of a whole block, where it lies."""
    return OnDevice(values) if isinstance(values, DeviceVector) else Dense(values)


MOST_EACH = 4
LEAST_BYTES = 256 << 10
MOST_STREAMED = 16
STREAMED_BYTES = 1 << 20


def partitions_for(tables: Sequence[Table], machines: int, *, overlaps: bool = False) -> int:
    """The number of partitions: as many as there may be machines, or up to `MOST_EACH` times that.

    More partitions spread more evenly over any number of servers, and let more of reading, updating and computing
    overlap. Each costs about 0.1 ms of CPU per worker and clock, so parts under `LEAST_BYTES` are not worth it.
    `overlaps`: up to `MOST_STREAMED` times as many, of at least `STREAMED_BYTES`, because a forward waits for the first
    ones and the others follow like the frames of one stream.
    """
    each = min(MOST_EACH, max(1, _bytes_of(tables) // (machines * LEAST_BYTES)))
    if overlaps:
        each = max(each, min(MOST_STREAMED, _bytes_of(tables) // (machines * STREAMED_BYTES)))
    return machines * each


def _bytes_of(tables: Sequence[Table]) -> int:
    return sum(table.rows * table.columns * np.dtype(table.dtype).itemsize for table in tables)


@dataclass(frozen=True)
class Layout:
    """The block of each table in each partition.

    A partition holds one block per table, in the order of `tables`: of a dense table a vector of elements,
    of a sparse table a matrix of whole rows. Blocks may be empty. `borders`: for each table, all of them dense, where
    the partitions end; by default they are even. `ends`: the same of some dense tables, by name.

    `gathers`: dense tables that units update lie in partition 0 alone if they are behind the first, a dense one. Then
    every other partition is final, and of use, with its part of the first table.
    """

    tables: tuple[Table, ...]
    partitions: int
    gathers: bool = False
    borders: tuple[tuple[int, ...], ...] = ()
    ends: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of all tables."""
        return _bytes_of(self.tables)

    @cached_property
    def partition_bytes(self) -> list[int]:
        """Bytes of each partition's blocks."""
        sizes = [0] * self.partitions
        for index, table in enumerate(self.tables):
            each = (table.columns if table.sparse else 1) * np.dtype(table.dtype).itemsize
            for partition, (start, stop) in enumerate(pairwise(self.cuts(index))):
                sizes[partition] += (stop - start) * each
        return sizes

    def cuts(self, table: int) -> list[int]:
        """N + 1 ascending positions: elements of a dense table, rows of a sparse one."""
        return self._cuts[table]

    @cached_property
    def _cuts(self) -> list[list[int]]:
        is_gathered = self.gathers and not self.tables[0].sparse
        return [
            [0, *self.borders[index]]
            if self.borders
            else self._cut(table, in_one=is_gathered and index > 0 and table.update is not Update.LOSS_SCALE)
            for index, table in enumerate(self.tables)
        ]

    def _cut(self, table: Table, *, in_one: bool) -> list[int]:
        n = self.partitions
        for name, ends in self.ends:
            if name == table.name:
                assert len(ends) == n and ends[-1] == table.rows * table.columns, (table, ends)
                return [0, *ends]
        if table.sparse:
            return [p * table.rows // n for p in range(n + 1)]
        elements = table.rows * table.columns
        if in_one:
            return [0] + [elements] * n
        groups = -(-elements // ALIGNMENT)
        return [min(elements, p * groups // n * ALIGNMENT) for p in range(n)] + [elements]

    def range_of(self, table: int, partition: int) -> tuple[int, int]:
        """(start, stop) of a partition's block in elements (dense) or rows (sparse)."""
        cuts = self.cuts(table)
        return cuts[partition], cuts[partition + 1]

    def blocks(self, values: Mapping[str, Array], partition: int) -> tuple[Array, ...]:
        """The partition's blocks of whole tables: views where the arrays are contiguous. Of a dense table that is not
        given, zeros."""
        found = []
        for index, table in enumerate(self.tables):
            start, stop = self.range_of(index, partition)
            if table.name not in values:
                assert not table.sparse, table
                found.append(np.zeros(stop - start, table.dtype))
                continue
            whole = np.ascontiguousarray(values[table.name], table.dtype)
            assert whole.shape == (table.rows, table.columns), (table, whole.shape)
            found.append(whole[start:stop] if table.sparse else whole.reshape(-1)[start:stop])
        return tuple(found)

    def whole(self, parts: Sequence[Sequence[Array]]) -> dict[str, Array]:
        """Whole tables from the blocks of all partitions; of the loss scale, which all have alike, that of one."""
        tables = {}
        for index, table in enumerate(self.tables):
            if table.update is Update.LOSS_SCALE:
                tables[table.name] = parts[0][index].reshape(1, -1)
                continue
            joined = np.concatenate([part[index] for part in parts])
            tables[table.name] = joined.reshape(table.rows, table.columns)
        return tables

    def whole_slot(self, parts: Sequence[Sequence[Array | None]]) -> dict[str, Array]:
        """One array of optimizer state as whole tables, from the blocks of all partitions; tables of gradients only."""
        tables = {}
        for index, table in enumerate(self.tables):
            if table.update is Update.GRADIENT:
                joined = np.concatenate([block for part in parts if (block := part[index]) is not None])
                tables[table.name] = joined.reshape(table.rows, table.columns)
        return tables

    def rows_by_partition(self, rows: Mapping[str, Array]) -> list[tuple[Array | None, ...]]:
        """Split global row numbers of sparse tables: local rows for each partition and table; None: all."""
        split: list[tuple[np.ndarray[Any, Any], list[int]] | None] = []
        for index, table in enumerate(self.tables):
            if not table.sparse:
                split.append(None)
                continue
            wanted = np.asarray(rows[table.name], np.int64)
            split.append((wanted, np.searchsorted(wanted, self.cuts(index)).tolist()))
        return [
            tuple(
                None
                if item is None
                else (item[0][item[1][p] : item[1][p + 1]] - self.cuts(index)[p]).astype(np.int32)
                for index, item in enumerate(split)
            )
            for p in range(self.partitions)
        ]

    @cached_property
    def whole_reads(self) -> tuple[tuple[None, ...], ...] | None:
        """The rows that every unit reads, by partition and table: whole blocks. None with sparse tables, where units
        choose."""
        if any(table.sparse for table in self.tables):
            return None
        return ((None,) * len(self.tables),) * self.partitions

    def split_updates(
        self, updates: Mapping[str, Array | DeviceVector], rows: Mapping[str, Array]
    ) -> list[tuple[Block | None, ...]]:
        """Cut updates of whole tables: for each partition one block per table, None where there is no update."""
        columns: list[list[Block | None]] = []
        for index, table in enumerate(self.tables):
            values = updates.get(table.name)
            cuts = self.cuts(index)
            if values is None:
                columns.append([None] * self.partitions)
            elif isinstance(values, DeviceVector):
                assert values.size == table.rows * table.columns, (table.name, values.size)
                columns.append([OnDevice(values[a:b]) if b > a else None for a, b in pairwise(cuts)])
            elif table.sparse:
                wanted = np.asarray(rows[table.name], np.int64)
                assert values.shape == (len(wanted), table.columns), (table.name, values.shape, len(wanted))
                at = np.searchsorted(wanted, cuts).tolist()
                values = np.ascontiguousarray(values, table.dtype)
                columns.append(
                    [
                        Sparse((wanted[a:b] - cut).astype(np.int32), values[a:b]) if b > a else None
                        for a, b, cut in zip(at, at[1:], cuts, strict=False)
                    ]
                )
            else:
                assert values.size == table.rows * table.columns, (table.name, values.shape)
                flat = np.ascontiguousarray(values, table.dtype).reshape(-1)
                columns.append([Dense(flat[a:b]) if b > a else None for a, b in pairwise(cuts)])
        return [tuple(column[p] for column in columns) for p in range(self.partitions)]


def read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
