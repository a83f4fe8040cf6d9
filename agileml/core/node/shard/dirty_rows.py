"""Cuts without whole copies: which rows of sparse tables changed since a cut, and their values at the cut.

Dense tables get new arrays with every version, so a cut refers to their arrays. Rows of sparse tables change in place:
the first write to a row after a cut saves its old values, and the shard's rows with those put back are the cut. The
saved rows are also the ones that changed, which is all that a backup with this cut needs for the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from agileml.application import Array, Table
from agileml.core.parameters.finite import is_sound
from agileml.core.protocol.messages import Cut, Rows
from agileml.core.protocol.view import CutId


class RowLog:
    """The rows of one block that changed since the log began, each once, with the values that they had then."""

    def __init__(self, rows: int) -> None:
        self._is_changed = np.zeros(rows, bool)
        self._pieces: list[tuple[Array, tuple[Array, ...]]] = []

    def note(self, rows: Array, old: tuple[Array, ...]) -> None:
        """Record distinct rows before they change; `old` has their values per array, and the log keeps it."""
        is_first = ~self._is_changed[rows]
        if is_first.all():
            self._pieces.append((rows, old))
        elif is_first.any():
            self._pieces.append((rows[is_first], tuple(values[is_first] for values in old)))
        self._is_changed[rows] = True

    def mark(self, rows: Array | slice) -> None:
        """Record rows that changed with unknown old values."""
        self._is_changed[rows] = True

    @property
    def is_changed(self) -> Array:
        """For each row, whether it changed."""
        return self._is_changed

    def absorb(self, later: RowLog) -> None:
        """Add a log that began when this one ended."""
        for rows, old in later._pieces:
            self.note(rows, old)

    def put_back(self, arrays: Sequence[Array]) -> None:
        """Write the old values into `arrays`, which hold the rows as they were when the log ended."""
        for rows, old in self._pieces:
            for array, values in zip(arrays, old, strict=True):
                array[rows] = values


@dataclass(frozen=True)
class CutMark:
    """A cut that a shard took. `cut` omits sparse tables; `logs` began with it (None for dense tables).

    `is_known`: the logs have the old values of all changed rows. False after a move, which brings only row numbers.
    """

    name: CutId
    cut: Cut
    logs: tuple[RowLog | None, ...]
    is_known: bool = True


def changed_rows(marks: Sequence[CutMark]) -> tuple[Array | None, ...]:
    """Per table, the rows that changed since the first of the marks, ascending; None: all rows, or a dense table."""
    found: list[Array | None] = []
    for logs in zip(*(mark.logs for mark in marks), strict=True):
        masks = [log.is_changed for log in logs if log is not None]
        changed = np.logical_or.reduce(masks) if masks else None
        found.append(None if changed is None or changed.all() else np.flatnonzero(changed).astype(np.int32))
    return tuple(found)


def put_back(cut: Cut, marks: Sequence[CutMark]) -> Cut:
    """The cut of the last mark, from a whole cut of the present, whose sparse tables are overwritten. `marks`: newest
    first."""
    first = marks[-1].cut
    for mark in marks:
        for table, log in enumerate(mark.logs):
            if log is not None:
                log.put_back(arrays_of(cut, table))
    sparse = [log is not None for log in marks[-1].logs]
    return Cut(
        first.clock,
        _chosen(sparse, cut.blocks, first.blocks),
        tuple(_chosen(sparse, now, then) for now, then in zip(cut.state, first.state, strict=True)),
        first.counted,
        first.progress,
    )


def completed(part: Cut, only: Rows, base: Cut, own: Collection[int] = ()) -> Cut:
    """A whole cut, from `base` and the rows that changed since. The arrays of `base` for the tables in `own` are
    overwritten."""
    is_whole = [rows is None for rows in only.by_table]
    merged = _copied(base, [whole or table in own for table, whole in enumerate(is_whole)])
    for table, rows in enumerate(only.by_table):
        if rows is not None:
            for array, values in zip(arrays_of(merged, table), arrays_of(part, table), strict=True):
                array[rows] = values
    return Cut(
        part.clock,
        _chosen(is_whole, part.blocks, merged.blocks),
        tuple(_chosen(is_whole, new, old) for new, old in zip(part.state, merged.state, strict=True)),
        part.counted,
        part.progress,
    )


def is_finite(cut: Cut, tables: Sequence[Table] = (), *, is_resident_finite: bool = False) -> bool:
    """True when no parameter is NaN, or infinite where its table may not be: training can only go back to such a cut.

    Without `tables` none may be infinite. is_resident_finite: resident tables were checked before.
    """
    if not tables:
        return all(is_sound(block.reshape(-1)) for block in cut.blocks)
    return all(
        is_sound(block.reshape(-1), may_be_infinite=table.may_be_infinite)
        for block, table in zip(cut.blocks, tables, strict=True)
        if not (table.resident and is_resident_finite)
    )


def arrays_of(cut: Cut, table: int) -> list[Array]:
    """A table's block in a cut, then its optimizer state, if it has any."""
    block = cut.blocks[table]
    return [block, *(slot[table] for slot in cut.state if slot[table].ndim == block.ndim)]


def _copied(cut: Cut, is_spare: Sequence[bool]) -> Cut:
    """The cut with copies of all tables but those marked in `is_spare`, which are taken as they are."""
    copied = [
        tuple(a if s else a.copy() for a, s in zip(arrays, is_spare, strict=True)) for arrays in cut.state
    ]
    blocks = tuple(a if s else a.copy() for a, s in zip(cut.blocks, is_spare, strict=True))
    return Cut(cut.clock, blocks, tuple(copied), cut.counted, cut.progress)


def _chosen(first: Sequence[bool], one: Sequence[Array], other: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(a if is_first else b for is_first, a, b in zip(first, one, other, strict=True))
