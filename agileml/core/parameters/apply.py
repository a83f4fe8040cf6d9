"""Applying the total of a clock to the blocks of one partition, for shards and the sequential run alike.

Dense tables can get new arrays, so that the version before stays readable. Sparse tables change in place, because a
clock touches few of their rows; an undo record keeps the old values of those rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agileml.application import Array, Table, Update
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense, Layout, Sparse
from agileml.core.parameters.optimizer import Optimizer, take_step
from agileml.core.parameters.step_terms import PLAIN, StepTerms

State = list[Array]  # an optimizer's arrays of one block, each of the block's shape; empty for STEP tables


@dataclass(frozen=True)
class Undo:
    """The rows of a sparse table that a clock changed (ascending), with their old values and optimizer state."""

    rows: Array
    values: Array
    state: tuple[Array, ...]


@dataclass(frozen=True)
class Applied:
    """A partition after a clock. `undo` has the changed rows of each sparse table."""

    blocks: tuple[Array, ...]
    state: tuple[State, ...]
    undo: tuple[Undo | None, ...]


def initial_state(
    tables: Sequence[Table], blocks: Sequence[Array], optimizer: Optimizer
) -> tuple[State, ...]:
    """The optimizer state of a partition before clock 0: zeros, and none for tables of steps."""
    return tuple(
        [np.zeros_like(block) for _ in range(optimizer.slots)] if table.update is Update.GRADIENT else []
        for table, block in zip(tables, blocks, strict=True)
    )


def whole_slots(
    layout: Layout, states: Sequence[Sequence[State]], slots: int
) -> tuple[dict[str, Array], ...]:
    """The optimizer state of all partitions by slot, as whole tables."""
    return tuple(
        layout.whole_slot([[arrays[slot] if arrays else None for arrays in state] for state in states])
        for slot in range(slots)
    )


def partition_optimizers(optimizer: Optimizer, layout: Layout, partition: int) -> tuple[Optimizer, ...]:
    """The optimizer of each table's block in a partition."""
    return tuple(
        optimizer.for_block(table, *layout.range_of(index, partition))
        for index, table in enumerate(layout.tables)
    )


def apply_total(
    total: Contribution,
    tables: Sequence[Table],
    blocks: Sequence[Array],
    state: Sequence[State],
    clock: int,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    in_place: bool,
    state_in_place: bool = False,
    into: Sequence[Array | None] | None = None,
    terms: StepTerms = PLAIN,
) -> Applied:
    """Apply the sum of all updates of `clock` (0-based) to the blocks of a partition.

    A table of gradients takes one step of the optimizer along the sum, a table of steps gets the sum added, the table
    of the loss scale gets the new values. A table that no unit updated stays as it is, and so do, with their optimizer
    state, the untouched rows of a sparse one.
    optimizer: one for all tables, or one for each. `in_place` is for dense tables: their arrays are overwritten, else
    `blocks` stay readable, and `state` unless `state_in_place`. Sparse tables and their state are always overwritten.
    `into`: arrays for dense tables' new blocks.
    """
    new_blocks: list[Array] = []
    new_state: list[State] = []
    undo: list[Undo | None] = []
    rooms = into or [None] * len(tables)
    rules = [optimizer] * len(tables) if not isinstance(optimizer, Sequence) else optimizer
    parts = zip(tables, blocks, state, total.blocks, rooms, rules, strict=True)
    for table, block, slots, update, room, rule in parts:
        before = None
        if isinstance(update, Sparse):
            assert table.sparse, table
            before = _apply_rows(table, block, slots, update, clock, rule, terms.of_rows)
        elif isinstance(update, Dense):
            assert not table.sparse, table
            own_state = in_place or state_in_place
            room = block if in_place else room
            block, slots = _apply_whole(table, block, slots, update, clock, rule, terms, room, own_state)
        new_blocks.append(block)
        new_state.append(slots)
        undo.append(before)
    return Applied(tuple(new_blocks), tuple(new_state), tuple(undo))


def _apply_whole(
    table: Table,
    block: Array,
    state: State,
    update: Dense,
    clock: int,
    optimizer: Optimizer,
    terms: StepTerms,
    into: Array | None,
    own_state: bool,
) -> tuple[Array, State]:
    if table.update is Update.LOSS_SCALE:
        return update.values, state
    if table.update is Update.STEP:
        return np.add(block, update.values, out=into), state
    return take_step(
        optimizer,
        clock,
        block,
        update.values,
        state,
        in_place=False,
        state_in_place=own_state,
        into=into,
        terms=terms,
    )


def _apply_rows(
    table: Table,
    block: Array,
    state: State,
    update: Sparse,
    clock: int,
    optimizer: Optimizer,
    terms: StepTerms,
) -> Undo:
    rows = update.rows
    old = block[rows]
    old_state = tuple(array[rows] for array in state)
    if table.update is Update.STEP:
        block[rows] = old + update.values
    else:
        new, touched = take_step(
            optimizer,
            clock,
            old.reshape(-1),
            np.ascontiguousarray(update.values).reshape(-1),
            [array.reshape(-1) for array in old_state],
            in_place=False,
            terms=terms,
        )
        block[rows] = new.reshape(old.shape)
        for array, values in zip(state, touched, strict=True):
            array[rows] = values.reshape(old.shape)
    return Undo(rows, old, old_state)


def read_rows(block: Array, rows: Array, undo: Sparse | None = None) -> Array:
    """Rows (ascending) of a sparse table's block, or with `undo` as they were before that record's clock."""
    found = block[rows]
    if undo is not None and undo.rows.size:
        at = np.minimum(np.searchsorted(undo.rows, rows), undo.rows.size - 1)
        changed = undo.rows[at] == rows
        found[changed] = undo.values[at[changed]]
    return found
