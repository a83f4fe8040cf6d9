"""Memory that the processes of one machine share: anonymous files, which end with the last process that has them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agileml.application import Array
from agileml.core.compute.arriving import bring
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Block, Dense, Layout, OnDevice, Sparse, read_only

ALIGNED = 64  # bytes, a cache line


@dataclass(frozen=True)
class Place:
    """An array in shared memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Summed:
    """A contribution in shared memory, of whole tables: the places of rows (None: dense) and values per table."""

    blocks: tuple[tuple[Place | None, Place] | None, ...]
    loss: float
    examples: int
    metrics: tuple[float, ...]


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


class SharedTables:
    """The parameters of a clock: whole dense tables; of sparse ones the rows that are read, and their numbers."""

    def __init__(self, layout: Layout, fd: int) -> None:
        """`fd`: an anonymous file, empty or of another process with the same layout."""
        self.layout = layout
        sizes = []
        for table in layout.tables:
            sizes.append(_aligned(table.rows * table.columns * np.dtype(table.dtype).itemsize))
            sizes.append(_aligned(table.rows * 8) if table.sparse else 0)
        total = max(ALIGNED, sum(sizes))
        if os.fstat(fd).st_size < total:
            os.ftruncate(fd, total)
        memory = mmap.mmap(fd, total)
        at = 0
        self._values: list[Array] = []
        self._rows: list[Array] = []
        for index, table in enumerate(layout.tables):
            count = table.rows * table.columns
            self._values.append(np.frombuffer(memory, table.dtype, count, at))
            at += sizes[2 * index]
            self._rows.append(np.frombuffer(memory, np.int64, table.rows if table.sparse else 0, at))
            at += sizes[2 * index + 1]

    def room(self, table: int, partition: int, clock: int = 0) -> Array | None:
        """The memory of a partition's block of a dense table, where a receiver may write it while nothing computes. All
        clocks have the same."""
        if self.layout.tables[table].sparse:
            return None
        start, stop = self.layout.range_of(table, partition)
        return self._values[table][start:stop]

    def fill(self, rows: Mapping[str, Array], pulled: Sequence[Sequence[Array]]) -> None:
        """Bring the pulled blocks to their places, unless they were received there. `rows`: of the sparse tables."""
        for index, table in enumerate(self.layout.tables):
            pieces = [blocks[index] for blocks in pulled]
            if table.sparse:
                count = len(rows[table.name])
                self._rows[index][:count] = rows[table.name]
                into = self._values[index][: count * table.columns].reshape(count, table.columns)
                np.concatenate(pieces, out=into)
                continue
            for partition, piece in enumerate(pieces):
                place = self.room(index, partition)
                assert place is not None
                bring(piece, place)

    def tables(self, counts: Sequence[int]) -> tuple[dict[str, Array], dict[str, Array]]:
        """(tables, rows of sparse tables) as read-only views; `counts[table]` rows of a sparse one are there."""
        tables, rows = {}, {}
        for index, table in enumerate(self.layout.tables):
            count = counts[index] if table.sparse else table.rows
            tables[table.name] = read_only(
                self._values[index][: count * table.columns].reshape(count, table.columns)
            )
            if table.sparse:
                rows[table.name] = read_only(self._rows[index][:count])
        return tables, rows


class Results:
    """The results of one compute process for an order: the process writes, the machine reads before the next order."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory: mmap.mmap | None = None
        self._used = 0

    def close(self) -> None:
        """Free the memory, once nobody has arrays in it."""
        self._memory = None
        os.close(self._fd)

    def clear(self) -> None:
        """Begin anew: earlier results may be overwritten."""
        self._used = 0

    def write(self, array: Array) -> Place:
        """Copy an array there."""
        offset, self._used = self._used, self._used + _aligned(max(1, array.nbytes))
        memory = self._mapped(self._used)
        np.frombuffer(memory, array.dtype, array.size, offset)[:] = array.reshape(-1)
        return Place(offset, array.shape, array.dtype.str)

    def write_sum(self, total: Contribution) -> Summed:
        """Copy a contribution there."""
        blocks: list[tuple[Place | None, Place] | None] = []
        for block in total.blocks:
            if block is None:
                blocks.append(None)
            else:
                assert not isinstance(block, OnDevice), "a pool's processes have no replica"
                rows = self.write(block.rows) if isinstance(block, Sparse) else None
                blocks.append((rows, self.write(block.values)))
        return Summed(tuple(blocks), total.loss, total.examples, total.metrics)

    def read(self, place: Place) -> Array:
        """The array at a place, read-only and valid until the next order."""
        count = int(np.prod(place.shape, dtype=np.int64))
        size = place.offset + count * np.dtype(place.dtype).itemsize
        return read_only(
            np.frombuffer(self._mapped(size), place.dtype, count, place.offset).reshape(place.shape)
        )

    def read_sum(self, summed: Summed) -> Contribution:
        """The contribution at its places, with read-only arrays that are valid until the next order."""
        blocks: list[Block | None] = []
        for found in summed.blocks:
            if found is None:
                blocks.append(None)
            elif found[0] is None:
                blocks.append(Dense(self.read(found[1])))
            else:
                blocks.append(Sparse(self.read(found[0]), self.read(found[1])))
        return Contribution(tuple(blocks), summed.loss, summed.examples, summed.metrics)

    def _mapped(self, size: int) -> mmap.mmap:
        if self._memory is None or len(self._memory) < size:
            if os.fstat(self._fd).st_size < size:
                os.ftruncate(self._fd, _whole_pages(2 * size))
            self._memory = mmap.mmap(self._fd, os.fstat(self._fd).st_size)
        return self._memory


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def kept(total: Contribution) -> Contribution:
    """A contribution whose arrays outlive the shared memory that some of them lie in."""
    blocks: list[Block | None] = []
    for block in total.blocks:
        if block is None or isinstance(block, OnDevice) or block.values.flags.writeable:
            blocks.append(block)
        elif isinstance(block, Sparse):
            blocks.append(Sparse(block.rows.copy(), block.values.copy()))
        else:
            blocks.append(Dense(block.values.copy()))
    return replace(total, blocks=tuple(blocks))
