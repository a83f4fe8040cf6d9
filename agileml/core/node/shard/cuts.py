"""The cuts that a shard can restore: the committed one, and the open one with its part for the backup.

A cut refers to the arrays of dense tables, which get new ones with every version. Of sparse tables, whose rows change
in place, it keeps the old values of the rows that changed since (`dirty_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from agileml.application import Array
from agileml.core.node.shard.dirty_rows import CutMark, RowLog, changed_rows, put_back
from agileml.core.parameters.apply import Applied
from agileml.core.protocol.messages import Cut, Rows
from agileml.core.protocol.view import CutId

# Copies the present version: these rows of sparse tables, or all.
Copied = Callable[[Sequence[Array | None] | None], Cut]


class ShardCuts:
    """The committed and the open cut of one shard. `copied`, where a method takes it, copies the present version."""

    def __init__(self, rows: Sequence[int | None]) -> None:
        """rows: of each sparse table's block; None: a dense table."""
        self._rows = rows
        self._base: CutMark | None = None  # the committed cut
        self._open: CutMark | None = None  # the open cut
        self._part: tuple[Cut, Rows | None] | None = None  # the open cut's part, until the backup has it

    def note(self, applied: Applied) -> None:
        """Record the old values of rows that a step has changed."""
        if (mark := self._open or self._base) is not None:
            for log, undo in zip(mark.logs, applied.undo, strict=True):
                if log is not None and undo is not None:
                    log.note(undo.rows, (undo.values, *undo.state))

    def open(self, name: CutId, copied: Copied) -> None:
        """Open a cut at the present version, and copy for the backup the rows that changed since the committed cut."""
        assert self._open is None, self._open
        only = self.changed()
        self._part = copied(only.by_table if only is not None else None), only
        self._open = self._mark(name, copied)

    def begin_from(self, name: CutId, changed: Rows | None, copied: Copied) -> None:
        """Treat the present version as the committed cut `name`, except for the rows in `changed`."""
        self._base = self._mark(name, copied, is_known=changed is None)
        for log, rows in zip(self._base.logs, changed.by_table if changed else (), strict=False):
            if log is not None:
                log.mark(rows if rows is not None else slice(None))

    def _mark(self, name: CutId, copied: Copied, *, is_known: bool = True) -> CutMark:
        cut = copied(tuple(None if rows is None else np.empty(0, np.int32) for rows in self._rows))
        logs = tuple(None if rows is None else RowLog(rows) for rows in self._rows)
        return CutMark(name, cut, logs, is_known)

    def changed(self) -> Rows | None:
        """The rows that changed since the committed cut; None where that is not known."""
        if self._base is None:
            return None
        return Rows(
            self._base.name, changed_rows([mark for mark in (self._base, self._open) if mark is not None])
        )

    def part(self, name: CutId) -> tuple[Cut, Rows | None] | None:
        """The part of the open cut for its backup: the rows that changed since the committed cut, or everything."""
        return self._part if self._open is not None and self._open.name == name else None

    def stored(self) -> None:
        """Drop the part of the open cut: the backup has it."""
        self._part = None

    @property
    def known(self) -> Mapping[CutId, Cut]:
        """The cuts that this shard can restore by itself, without sparse tables; `whole` adds those."""
        marks = (self._base, self._open)
        return {mark.name: mark.cut for mark in marks if mark is not None and mark.is_known}

    def whole(self, name: CutId, copied: Copied) -> Cut | None:
        """A whole copy of the committed cut or of the open one."""
        if name not in self.known:
            return None
        newest_first = [mark for mark in (self._open, self._base) if mark is not None]
        names = [mark.name for mark in newest_first]
        return put_back(copied(None), newest_first[: names.index(name) + 1])

    def forget(self, committed: CutId | None = None, open_: CutId | None = None) -> None:
        """Drop all cuts but `committed`, which is the committed one from now on, and `open_`."""
        base, opened = self._base, self._open
        if opened is not None and opened.name == committed:
            self._base, self._open, self._part = opened, None, None
            return
        if opened is not None and opened.name != open_:
            if base is not None:  # the committed cut's log goes on with the rows of the open one
                for log, later in zip(base.logs, opened.logs, strict=True):
                    if log is not None and later is not None:
                        log.absorb(later)
            self._open = self._part = None
        if base is not None and base.name != committed:
            self._base = None
