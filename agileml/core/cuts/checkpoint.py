"""When to save the committed cut as a checkpoint, and which of its parts are written. One is open at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agileml.core.protocol.messages import Pending, Saved
from agileml.core.protocol.view import CutId


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint: its name, and by partition the bundles of later clocks that its cut contains
    (`Cut.counted`)."""

    name: CutId
    counted: tuple[Pending, ...]


@dataclass(frozen=True)
class Unreadable:
    """The checkpoints could not be read, so the controller does not know whether there is one. reason: a sentence."""

    reason: str


class OpenSave:
    """The checkpoint that is being written. `every_s` None: never. `newest` is the newest whole one."""

    def __init__(self, every_s: float | None, partitions: int, newest: Checkpoint | None) -> None:
        self.newest = newest
        self.cut: CutId | None = None
        self._every_s = every_s
        self._partitions = partitions
        self._parts: dict[int, Saved] = {}
        self._due_s: float | None = None
        self._is_sealing = False
        self._tried = newest.name if newest else None  # the newest that we tried to save, successfully or not

    def begin(self, committed: CutId, now_s: float, *, is_last: bool) -> CutId | None:
        """The cut to save now, if one is due: `every_s` seconds after the one before, and at the end of the run."""
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
        """Record that a part is written. Returns all parts in order if it was the last one."""
        if message.cut != self.cut or self._is_sealing:
            return None
        self._parts[message.partition] = message
        if len(self._parts) < self._partitions:
            return None
        self._is_sealing = True
        return [self._parts[partition] for partition in range(self._partitions)]

    def sealed(self, name: CutId) -> None:
        """Record that the manifest is written."""
        if name == self.cut:
            self.newest = Checkpoint(name, tuple(self._parts[p].counted for p in range(self._partitions)))
            self.cut = None

    def failed(self, name: CutId) -> bool:
        """Give up this checkpoint: a part or the manifest could not be written. False if it was given up already."""
        if name != self.cut:
            return False
        self.cut = None
        return True
