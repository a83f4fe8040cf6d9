"""The reliable copies: of every backed-up partition the committed cut and the one that is arriving."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from agileml.core.node.dirty_rows import completed, is_finite
from agileml.core.node.server import SendTo
from agileml.core.protocol.messages import (
    CONTROLLER,
    Cut,
    Part,
    PartAck,
    PartRefused,
    Rows,
    ShardCopy,
    ShardState,
    Stored,
)
from agileml.core.protocol.view import INITIAL, CutId, View


@dataclass(frozen=True)
class _Arriving:
    """A partition's part of the open cut: whole, or (`only`) what changed since the committed one."""

    name: CutId
    cut: Cut
    only: Rows | None
    is_finite: bool

    def stored(self, partition: int) -> Stored:
        """What the controller is told."""
        return Stored(self.name.epoch, partition, self.name.clock, self.is_finite, self.cut.size_bytes)


@dataclass
class Backup:
    """Holds cuts. A part counts as committed only when the controller says that the whole cut is.

    Until then the rows of an arriving cut lie beside the committed one; then they are written into it. What others were
    given of it stays as it is: the first write after that is to a copy.
    """

    send: SendTo
    committed: CutId = INITIAL
    _cuts: dict[int, tuple[CutId, Cut]] = field(default_factory=dict)  # partition -> its part, committed
    _owned: dict[int, set[int]] = field(
        default_factory=dict
    )  # partition -> tables that nobody else refers to
    _arriving: dict[int, _Arriving] = field(default_factory=dict)
    _staged: dict[tuple[int, int], tuple[CutId, Cut]] = field(default_factory=dict)  # (epoch, partition)

    def part(self, owner: str, message: Part) -> None:
        """Keep a part of the open cut."""
        self.commit(message.committed)
        name = CutId(message.cut.clock, message.epoch)
        known = self._arriving.get(message.partition)
        if name > self.committed and (known is None or known.name <= name):
            if message.only is not None and message.only.base != self.name(message.partition):
                self.send(owner, PartRefused(message.epoch, message.partition, name.clock))
                return
            arriving = _Arriving(name, message.cut, message.only, is_finite(message.cut))
            self._arriving[message.partition] = arriving
            self.send(CONTROLLER, arriving.stored(message.partition))
        self.send(owner, PartAck(message.epoch, message.partition, name.clock))

    def commit(self, committed: CutId) -> None:
        """The cut `committed` is durable: its parts replace the ones before."""
        if committed <= self.committed:
            return
        for partition, arriving in list(self._arriving.items()):
            if arriving.name == committed:
                self._merge(partition, arriving)
            if arriving.name <= committed:
                del self._arriving[partition]
        self.committed = committed

    def _merge(self, partition: int, arriving: _Arriving) -> None:
        cut, only = arriving.cut, arriving.only
        if only is not None:
            name, base = self._cuts[partition]
            assert name == only.base, (partition, name, only.base)
            cut = completed(cut, only, base, self._owned.get(partition, ()))
            self._owned[partition] = {table for table, rows in enumerate(only.by_table) if rows is not None}
        else:
            self._owned.pop(partition, None)
        self._cuts[partition] = (arriving.name, cut)

    def held(self) -> tuple[tuple[int, ShardState], ...]:
        """The partitions whose part of the committed cut is here, and its coverage."""
        return tuple(
            (p, ShardState(cut.clock, cut.counted))
            for p, (name, cut) in sorted(self._cuts.items())
            if name == self.committed
        )

    def name(self, partition: int) -> CutId | None:
        """The committed cut, if the partition's part of it is here."""
        name, _ = self._cuts.get(partition, (None, None))
        return name if name == self.committed else None

    def cut(self, partition: int) -> Cut | None:
        """The partition's part of the committed cut, if it is here."""
        if self.name(partition) is None:
            return None
        self._owned.pop(partition, None)
        return self._cuts[partition][1]

    def parts(self) -> Iterator[tuple[int, CutId, Cut]]:
        """(partition, name, cut) of everything that is committed here."""
        for partition, (name, cut) in sorted(self._cuts.items()):
            self._owned.pop(partition, None)
            yield partition, name, cut

    def arrived(self, partition: int) -> Cut | None:
        """The partition's part of the open cut, if it is here: a whole copy."""
        arriving = self._arriving.get(partition)
        if arriving is None or arriving.only is None:
            return arriving.cut if arriving else None
        return completed(arriving.cut, arriving.only, self._cuts[partition][1])

    def completed(self, partition: int, copy: ShardCopy) -> ShardCopy | None:
        """A shard on its way here, with what is only here of it; None when that is here no more."""
        if copy.only is None:
            return copy
        if copy.only.base != self.name(partition):
            return None
        cut = completed(copy.cut, copy.only, self._cuts[partition][1])
        return replace(copy, cut=cut, only=None)

    def prepare(self, committed: CutId, tag: int) -> None:
        """A change begins. What was staged for the durable view counts, though it was never announced here."""
        self.commit(committed)
        self._unstage(tag)

    def _unstage(self, epoch: int) -> None:
        """Take over what was staged for `epoch`, unless a newer committed cut came meanwhile; drop the rest."""
        for (staged_for, partition), (name, cut) in self._staged.items():
            known = self._cuts.get(partition)
            if staged_for == epoch and (known is None or known[0] < name):
                self._cuts[partition] = (name, cut)
                self._owned.pop(partition, None)
        self._staged.clear()

    def stage(self, epoch: int, partition: int, name: CutId, cut: Cut) -> None:
        """Get ready to be the backup of a partition in `epoch`, with its part of the cut committed then."""
        self._staged[epoch, partition] = (name, cut)

    def is_staged(self, epoch: int, partition: int) -> bool:
        """True when `stage` was called for it."""
        return (epoch, partition) in self._staged

    def adopt(self, view: View, me: str) -> None:
        """The view is durable: keep the partitions it gives to this node, and parts that came in its epoch."""
        mine = {p for p, node in enumerate(view.backup) if node == me}
        self._unstage(view.epoch)
        self._cuts = {p: named for p, named in self._cuts.items() if p in mine}
        self._owned = {p: tables for p, tables in self._owned.items() if p in mine}
        self._arriving = {p: part for p, part in self._arriving.items() if part.name.epoch == view.epoch}

    def resend(self) -> None:
        """Tell the controller again of parts that it has not committed."""
        for partition, arriving in self._arriving.items():
            self.send(CONTROLLER, arriving.stored(partition))
