"""Computing units, in the compute thread of a machine and in the sequential run alike.

    reads = work.reads(clock, bundles)            # which rows to pull, by partition
    inputs = work.assemble(reads, pulled)         # the pulled blocks as whole tables
    contributions = work.compute(inputs, bundle)  # one per partition, for each bundle

Unit u of a clock is part u % parts of slice u // parts. A bundle is a set of units; in a deterministic job it is an
aligned subtree, and its sum is taken along the tree of `fold`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agileml.application import Application, Array, ArrivingTables, DeviceVector, Unit
from agileml.core.compute.arriving import ArrivingBlocks, bring
from agileml.core.compute.contract import CheckedUpdates, ContractError, checked_reads, checked_updates
from agileml.core.compute.cursor import Cursor
from agileml.core.compute.streaming import Emit, Stream, can_stream
from agileml.core.compute.unit_error import UnitError, blamed
from agileml.core.parameters.arena import joined
from agileml.core.parameters.fold import Contribution, TreeSum, running_sum
from agileml.core.parameters.layout import MOST_ROWS, Block, Dense, Layout, OnDevice, Sparse, read_only
from straggler.coverage import Units, members, show, span, union

LOOKS = 32  # at the cursor during a bundle, unless more are asked for
Rows = Mapping[str, Array]  # ascending row numbers of each sparse table


@dataclass(frozen=True)
class Reads:
    """The rows that some units of a clock read. `by_partition[p]`: local rows per table, None for a whole dense
    block."""

    clock: int
    by_unit: Mapping[int, Rows]
    rows: Rows  # the union over the units
    by_partition: tuple[tuple[Array | None, ...], ...]

    def taken_from(self, partitions: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """The rows that are read, of the blocks of all partitions."""
        return [
            [block if rows is None else block[rows] for block, rows in zip(blocks, wanted, strict=True)]
            for blocks, wanted in zip(partitions, self.by_partition, strict=True)
        ]


@dataclass(frozen=True)
class Inputs:
    """The parameters that some units of a clock read: whole dense tables, the rows `reads.rows` of sparse ones.

    Read-only, and valid until the next `assemble` of the same UnitComputer that is not `apart`. `is_shared`: the
    rows are also those of units that other processes compute.
    """

    reads: Reads
    tables: Mapping[str, Array]
    is_shared: bool = False


def _nothing(units: int) -> None:
    pass


class UnitComputer:
    """The units of an application that this process can compute: those of the slices it has loaded."""

    def __init__(
        self,
        application: Application,
        layout: Layout,
        parts: int = 1,
        *,
        deterministic: bool = True,
        buffers: int = 1,
    ) -> None:
        """`buffers`: of whole tables, taken in turn by the clocks; with 2 the parameters of the next clock may be
        received while this one is computed."""
        self.buffers = buffers
        self.application = application
        self.layout = layout
        self.parts = parts
        self.deterministic = deterministic
        self._items: dict[int, Any] = {}
        self._newest: tuple[tuple[int, tuple[Units, ...]], Reads] | None = None  # of `loaded_reads`
        self._streams: bool = can_stream(layout)
        # Buffers for each dense table, against page faults, by its number and the turn.
        self._wholes: dict[tuple[int, int], Array] = {}

    def streams(self, bundle: Units) -> bool:
        """True when the application may stream a bundle, whose sum then has one term."""
        return self._streams and not (self.deterministic and bundle.bit_count() > 1)

    @property
    def units(self) -> int:
        """Units of one clock."""
        return self.application.settings.slices * self.parts

    @property
    def loaded(self) -> frozenset[int]:
        """The slices whose items are here."""
        return frozenset(self._items)

    def load(self, slices: Iterable[int]) -> None:
        """Load the slices that are not loaded yet. Raises InputError (bad data) or UnitError (anything else)."""
        for index in slices:
            if index not in self._items:
                with blamed(f"loading slice {index}"):
                    self._items[index] = self.application.load(index)

    def items(self, index: int) -> Any:
        """The items of a slice that is loaded."""
        return self._items[index]

    def unit(self, clock: int, number: int) -> Unit:
        return Unit(clock, number // self.parts, number % self.parts, self.parts)

    def reads(self, clock: int, bundles: Iterable[Units]) -> Reads:
        """The rows that the units of the bundles read. Raises UnitError."""
        numbers = list(members(union(bundles)))
        by_unit = {number: self._reads_of(self.unit(clock, number)) for number in numbers}
        rows = self._union(list(by_unit.values()))
        return Reads(clock, by_unit, rows, tuple(self.layout.rows_by_partition(rows)))

    def loaded_reads(self, clock: int, bundles: tuple[Units, ...]) -> Reads:
        """As `reads`, with the slices that are not loaded yet. The last are kept: computing needs them again."""
        key = clock, bundles
        if self._newest is None or self._newest[0] != key:
            self.load(sorted({unit // self.parts for unit in members(union(bundles))}))
            self._newest = key, self.reads(clock, bundles)
        return self._newest[1]

    def assemble(self, reads: Reads, pulled: Sequence[Sequence[Array]], *, apart: bool = False) -> Inputs:
        """Join the pulled blocks into whole tables. `pulled[p]`: partition p's blocks; of sparse tables, the rows in
        `reads`. `apart`: without touching the memory of the inputs assembled before."""
        tables = {}
        for index, table in enumerate(self.layout.tables):
            if table.resident:
                continue
            pieces = [blocks[index] for blocks in pulled]
            if len(pieces) == 1:
                whole = pieces[0].view()
            elif table.sparse or apart:
                whole = np.concatenate(pieces)
            elif (found := joined(pieces)) is not None:  # the pieces are contiguous in memory
                whole = found
            else:
                whole = self._whole(index, reads.clock)
                for partition, piece in enumerate(pieces):
                    bring(piece, whole[slice(*self.layout.range_of(index, partition))])
            tables[table.name] = read_only(whole.reshape(-1, table.columns))
            assert len(tables[table.name]) == (len(reads.rows[table.name]) if table.sparse else table.rows)
        return Inputs(reads, tables)

    def assemble_arriving(self, reads: Reads, take: Callable[[int], Sequence[Array]]) -> Inputs:
        """As `assemble`, of blocks that come meanwhile: `take(p)` returns those of partition p, when they are here.

        There must be no sparse table. An application that does not wait by itself waits for everything here.
        """
        wholes = {
            table.name: self._whole(index, reads.clock) for index, table in enumerate(self.layout.tables)
        }
        views = {
            table.name: read_only(wholes[table.name].reshape(-1, table.columns))
            for table in self.layout.tables
        }
        tables = ArrivingTables(views, ArrivingBlocks(self.layout, wholes, take).wait)
        if not self.application.waits_for_parameters:
            tables.wait_for_all()
        return Inputs(reads, tables)

    def room(self, table: int, partition: int, clock: int) -> Array | None:
        """The memory of a partition's block of a dense table in the inputs of a clock: a receiver may write the block
        there while nothing is computed from it, which saves a copy. None: `assemble` uses the block as it is."""
        if self.layout.partitions == 1 or self.layout.tables[table].sparse:
            return None
        start, stop = self.layout.range_of(table, partition)
        return self._whole(table, clock)[start:stop]

    def _whole(self, index: int, clock: int) -> Array:
        table, key = self.layout.tables[index], (index, clock % self.buffers)
        if key not in self._wholes:
            self._wholes[key] = np.empty(table.rows * table.columns, table.dtype)
        return self._wholes[key]

    def compute(self, inputs: Inputs, bundle: Units) -> list[Contribution]:
        """The summed updates of a bundle, per partition; loss and examples are in partition 0's. Raises UnitError."""
        found: dict[int, Contribution] = {}
        self.stream(inputs, bundle, found.__setitem__)
        return [found[partition] for partition in range(self.layout.partitions)]

    def stream(self, inputs: Inputs, bundle: Units, emit: Emit) -> None:
        """As `compute`, but emits each partition's contribution as soon as it is final. Raises UnitError."""
        stream = self._streamed(inputs, bundle, emit)
        if stream is None:
            for partition, contribution in enumerate(self.split(self.total(inputs, bundle))):
                emit(partition, contribution)

    def _streamed(self, inputs: Inputs, bundle: Units, emit: Emit) -> Stream | None:
        """Let the application stream; None when it cannot, or when the bundle's sum has more than one term."""
        if not self.streams(bundle):
            return None
        stream = Stream(self.layout, emit)
        units = [self.unit(inputs.reads.clock, number) for number in members(bundle)]
        items = [self._items[unit.slice] for unit in units]
        with blamed(f"clock {inputs.reads.clock}, units {show(bundle)}"):
            updates = self.application.process_streaming(units, items, inputs.tables, stream.ready)
            if updates is None:
                self._streams = False
                return None
            checked = checked_updates("process_streaming", self.layout.tables, {}, updates)
        for partition, contribution in enumerate(self.split(self._contribution(checked))):
            if partition not in stream.emitted:
                emit(partition, contribution)
        return stream

    def total(self, inputs: Inputs, bundle: Units) -> Contribution:
        """The summed updates of a bundle, of whole tables. Raises UnitError."""
        ((units, total),) = self.sums(inputs, bundle, Cursor(bundle.bit_count()))
        assert units == bundle
        return total

    def sums(
        self, inputs: Inputs, bundle: Units, cursor: Cursor, done: Callable[[int], None] = _nothing
    ) -> list[tuple[Units, Contribution]]:
        """The summed updates, of whole tables, of as many units of the bundle as the cursor lets begin.

        One sum of the whole bundle, if its end is not moved; otherwise one for each aligned subtree of the units in a
        deterministic job, one in others; none if the computation is aborted. `done` is called with the number of
        units of each chunk after it. Raises UnitError.
        """
        numbers = list(members(bundle))
        tree, total, at = TreeSum(), None, 0
        # Where the order of adding counts, units are computed one by one anyway: then looking up costs nothing.
        is_one_by_one = self.deterministic and not self.application.sums_are_exact
        most = -(-len(numbers) // LOOKS) if is_one_by_one and not cursor.chunk else len(numbers)
        while count := cursor.claim(min(most, len(numbers) - at)):
            chunk, at = numbers[at : at + count], at + count
            if self.deterministic:
                for leaf in self._leaves(inputs, chunk, is_all=count == len(numbers) > 1):
                    tree.add(leaf)
            else:
                more = self._sum_of(inputs, chunk)
                total = more if total is None else running_sum((total, more))
            done(count)
        if cursor.is_aborted or not at:
            return []
        if total is not None:
            return [(union(1 << number for number in numbers[:at]) if at < len(numbers) else bundle, total)]
        found, first = [], numbers[0]
        for size, subtotal in tree.sums():
            found.append((span(first, first + size), subtotal))
            first += size
        return found

    def _leaves(self, inputs: Inputs, numbers: Sequence[int], is_all: bool) -> Iterator[Contribution]:
        """The contribution of each unit to a sum. `is_all`: these are all its units."""
        if is_all and self.application.sums_are_exact:
            yield from self._compute_each(inputs, numbers)
        else:
            for number in numbers:
                yield self._compute_unit(inputs, number)

    def _sum_of(self, inputs: Inputs, numbers: Sequence[int]) -> Contribution:
        are_several, is_exact = len(numbers) > 1, self.application.sums_are_exact
        if are_several and not is_exact and (at_once := self._together(inputs, numbers, each=False)):
            return at_once[0]
        return running_sum(self._leaves(inputs, numbers, is_all=are_several))

    def _reads_of(self, unit: Unit) -> Rows:
        items = self._items[unit.slice]
        with blamed(_place(unit)):
            found = self.application.reads(unit, items)
            return checked_reads(self.layout.tables, found)

    def _union(self, rows: Sequence[Rows]) -> Rows:
        sparse = [table.name for table in self.layout.tables if table.sparse]
        return self.union_of({name: [found[name] for found in rows] for name in sparse})

    def union_of(self, rows: Mapping[str, Sequence[Array]]) -> Rows:
        """The union of ascending row lists of each sparse table."""
        most = {table.name: table.rows for table in self.layout.tables}
        return {name: _union_of_rows(lists, most[name]) for name, lists in rows.items()}

    def _parameters(self, inputs: Inputs, rows: Rows) -> dict[str, Array]:
        """The inputs with `rows` of the sparse tables only."""
        if isinstance(inputs.tables, ArrivingTables):
            return inputs.tables  # no sparse tables
        tables = dict(inputs.tables)
        for table in self.layout.tables:
            if not table.sparse:
                continue
            wanted, there = rows[table.name], inputs.reads.rows[table.name]
            if len(wanted) < len(there):
                at = wanted if len(there) == table.rows else np.searchsorted(there, wanted)
                tables[table.name] = read_only(tables[table.name].take(at, axis=0))
        return tables

    def _compute_unit(self, inputs: Inputs, number: int) -> Contribution:
        unit = self.unit(inputs.reads.clock, number)
        rows = inputs.reads.by_unit[number]
        items, parameters = self._items[unit.slice], self._parameters(inputs, rows)
        with blamed(_place(unit)):
            updates = self.application.process(unit, items, parameters)
            return self._contribution(checked_updates("process", self.layout.tables, rows, updates))

    def _compute_each(self, inputs: Inputs, numbers: Sequence[int]) -> list[Contribution]:
        found = self._together(inputs, numbers, each=True)
        if len(found) != len(numbers):
            problem = (
                f"process_each() returned {len(found)} updates, expected one for each of {len(numbers)} units"
            )
            raise UnitError(_place_of(inputs.reads.clock, numbers), problem)
        return found

    def _together(self, inputs: Inputs, numbers: Sequence[int], *, each: bool) -> list[Contribution]:
        """Compute several units in one call: each contribution, or their sum; none if the application cannot."""
        process = self.application.process_each if each else self.application.process_many
        clock = inputs.reads.clock
        units = [self.unit(clock, number) for number in numbers]
        rows = inputs.reads.rows
        if inputs.is_shared or len(numbers) < len(inputs.reads.by_unit):
            rows = self._union([inputs.reads.by_unit[number] for number in numbers])
        items = [self._items[unit.slice] for unit in units]
        parameters = self._parameters(inputs, rows)
        with blamed(_place_of(clock, numbers)):
            found = process(units, items, rows, parameters)
            several = found if each and isinstance(found, list) else [] if found is None else [found]
            checked = [checked_updates(process.__name__, self.layout.tables, rows, one) for one in several]
            return [self._contribution(one) for one in checked]

    def _contribution(self, updates: CheckedUpdates) -> Contribution:
        """The updates of whole tables. Splitting them after the addition gives the same sums."""
        blocks: list[Block | None] = []
        for table in self.layout.tables:
            values = updates.tables.get(table.name)
            if values is None or values.size == 0:
                blocks.append(None)
            elif isinstance(values, DeviceVector):
                blocks.append(OnDevice(values))
            elif table.sparse:
                kind = np.int32 if table.rows <= MOST_ROWS else np.int64
                blocks.append(Sparse(updates.rows[table.name].astype(kind, copy=False), values))
            else:
                blocks.append(Dense(values.reshape(-1)))
        return Contribution(tuple(blocks), updates.loss, updates.examples, self._sums(updates.metrics))

    def _sums(self, metrics: Mapping[str, tuple[float, float]]) -> tuple[float, ...]:
        """Sum and weight of each metric of the application, in its order; nothing where none was measured."""
        if not metrics:
            return ()
        names = self.application.metrics()
        if unknown := sorted(metrics.keys() - set(names)):
            raise ContractError(f"the metric {unknown[0]!r} was returned, expected names that metrics() has")
        return tuple(float(number) for name in names for number in metrics.get(name, (0.0, 0.0)))

    def split(self, total: Contribution) -> list[Contribution]:
        """The parts of a contribution by partition; loss and examples are in partition 0's."""
        updates: dict[str, Array | DeviceVector] = {}
        rows = {}
        for table, block in zip(self.layout.tables, total.blocks, strict=True):
            if block is not None:
                updates[table.name] = block.values
            if isinstance(block, Sparse):
                rows[table.name] = block.rows
        split = self.layout.split_updates(updates, rows)
        first = Contribution(split[0], total.loss, total.examples, total.metrics)
        return [first, *(Contribution(blocks) for blocks in split[1:])]


def _union_of_rows(rows: Sequence[Array], most: int) -> Array:
    """The ascending union of ascending row lists; the table has `most` rows."""
    if len(rows) == 1:
        return rows[0]
    together = np.concatenate(rows) if rows else np.empty(0, np.int64)
    if together.size < most // 64:
        return np.unique(together)
    # Marking takes linear time and beats sorting, unless few rows of a large table are read.
    marks = np.zeros(most, bool)
    marks[together] = True
    return np.flatnonzero(marks)


def _place(unit: Unit) -> str:
    return f"clock {unit.clock}, slice {unit.slice}, part {unit.part}"


def _place_of(clock: int, numbers: Sequence[int]) -> str:
    return f"clock {clock}, units {show(union(1 << number for number in numbers))}"
