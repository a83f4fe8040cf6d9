"""When to save the committed cut as a checkpoint, and how far that is. One is open at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agileml.core.protocol.messages import Pending, Saved
from agileml.core.protocol.view import CutId


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: its name, and by partition what its cut has of later clocks (see Cut.counted)."""

    name: CutId
    counted: tuple[Pending, ...]


class OpenSave:
    """`every_s` None: no checkpoints. `newest` is the newest whole one."""

    def __init__(self, every_s: float | None, partitions: int, newest: Checkpoint | None) -> None:
        self.newest = newest
        self.cut: CutId | None = None
        self._every_s = every_s
        self._partitions = partitions
        self._parts: dict[int, Saved] = {}
        self._due_s: float | None = None
        self._is_sealing = False
        self._tried = newest.name if newest else None  # whether that went well or not

    def begin(self, committed: CutId, now_s: float, *, is_last: bool) -> CutId | None:
        """The cut to save now, if one is due: `every_s` after the one before, and at the end of the run."""
        if self._every_s is None or committed.clock == 0 or committed == self._tried:
            return None
        if self._due_s is None:
            self._due_s = now_s + self._every_s
        if self.cut is not None or (now_s < self._due_s and not is_last):
            return None
        self._due_s = now_s + self._every_s
        self.cut = self._tried = committed
        self._parts, self._is_sealing = {}, False
        return committed

    def saved(self, message: Saved) -> Sequence[Saved] | None:
        """A part is written; all parts in order when it was the last."""
        if message.cut != self.cut or self._is_sealing:
            return None
        self._parts[message.partition] = message
        if len(self._parts) < self._partitions:
            return None
        self._is_sealing = True
        return [self._parts[partition] for partition in range(self._partitions)]

    def sealed(self, name: CutId) -> None:
        """The manifest is written."""
        if name == self.cut:
            self.newest = Checkpoint(name, tuple(self._parts[p].counted for p in range(self._partitions)))
            self.cut = None

    def failed(self, name: CutId) -> bool:
        """A part or the manifest could not be written: this one is given up. False when it was already."""
        if name != self.cut:
            return False
        self.cut = None
        return True
