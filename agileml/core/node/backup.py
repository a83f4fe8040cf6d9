"""The reliable copies of partitions: of each, the committed cut and the one that is arriving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from agileml.application import Table
from agileml.core.node.server import SendTo
from agileml.core.node.shard.dirty_rows import completed, is_finite
from agileml.core.protocol.commands import SavePart
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.messages import (
    CONTROLLER,
    Cut,
    Part,
    PartAck,
    PartRefused,
    Rows,
    Save,
    Saved,
    SaveFailed,
    ShardCopy,
    ShardState,
    Stored,
)
from agileml.core.protocol.view import INITIAL, CutId, View


@dataclass(frozen=True)
class _Arriving:
    """A partition's part of the open cut: whole, or (`only`) just the rows that changed since the committed one."""

    name: CutId
    cut: Cut
    only: Rows | None
    is_finite: bool

    def stored(self, partition: int) -> Stored:
        """The message that tells the controller."""
        return Stored(self.name.epoch, partition, self.name.clock, self.is_finite, self.cut.size_bytes)


@dataclass
class Backup:
    """Holds cuts. A part is committed only when the controller says that the whole cut is.

    Until then the backup keeps the rows of an arriving cut beside the committed one; on commit it writes them into it.
    It never overwrites arrays that it gave to others: the first write after that goes to a copy.
    """

    send: SendTo
    committed: CutId = INITIAL
    tables: Sequence[Table] = ()
    _cuts: dict[int, tuple[CutId, Cut]] = field(default_factory=dict)  # partition -> its part, committed
    # partition -> tables whose arrays only this backup refers to
    _owned: dict[int, set[int]] = field(default_factory=dict)
    _arriving: dict[int, _Arriving] = field(default_factory=dict)
    _staged: dict[tuple[int, int], tuple[CutId, Cut]] = field(default_factory=dict)  # (epoch, partition)

    def part(self, owner: str, message: Part) -> None:
        """Keep a part of the open cut and tell the controller; refuse rows whose base cut is not here."""
        self.commit(message.committed)
        name = CutId(message.cut.clock, message.epoch)
        known = self._arriving.get(message.partition)
        if name > self.committed and (known is None or known.name <= name):
            if message.only is not None and message.only.base != self.name(message.partition):
                self.send(owner, PartRefused(message.epoch, message.partition, name.clock))
                return
            is_sound = is_finite(message.cut, self.tables, is_resident_finite=message.is_finite)
            arriving = _Arriving(name, message.cut, message.only, is_sound)
            self._arriving[message.partition] = arriving
            self.send(CONTROLLER, arriving.stored(message.partition))
        self.send(owner, PartAck(message.epoch, message.partition, name.clock))

    def commit(self, committed: CutId) -> None:
        """Replace the parts of the cut before by those of `committed`, which is durable."""
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
        """The partitions whose part of the committed cut is here, with its clock and coverage."""
        return tuple(
            (p, ShardState(cut.clock, cut.counted))
            for p, (name, cut) in sorted(self._cuts.items())
            if name == self.committed
        )

    def name(self, partition: int) -> CutId | None:
        """The name of the committed cut, if the partition's part of it is here."""
        name, _ = self._cuts.get(partition, (None, None))
        return name if name == self.committed else None

    def cut(self, partition: int) -> Cut | None:
        """The partition's part of the committed cut, if it is here."""
        if self.name(partition) is None:
            return None
        self._owned.pop(partition, None)
        return self._cuts[partition][1]

    def parts(self) -> Iterator[tuple[int, CutId, Cut]]:
        """(partition, name, cut) of all committed parts here."""
        for partition, (name, cut) in sorted(self._cuts.items()):
            self._owned.pop(partition, None)
            yield partition, name, cut

    def arrived(self, partition: int) -> Cut | None:
        """A whole copy of the partition's part of the open cut, if it is here."""
        arriving = self._arriving.get(partition)
        if arriving is None or arriving.only is None:
            return arriving.cut if arriving else None
        return completed(arriving.cut, arriving.only, self._cuts[partition][1])

    def completed(self, partition: int, copy: ShardCopy) -> ShardCopy | None:
        """Fill in rows omitted from a received copy from our base cut; None if we no longer have that cut."""
        if copy.only is None:
            return copy
        if copy.only.base != self.name(partition):
            return None
        cut = completed(copy.cut, copy.only, self._cuts[partition][1])
        return replace(copy, cut=cut, only=None)

    def prepare(self, committed: CutId, tag: int) -> None:
        """Get ready for a change. Parts staged for the durable view count, even if its announcement never arrived."""
        self.commit(committed)
        self._unstage(tag)

    def _unstage(self, epoch: int) -> None:
        """Take over the parts staged for `epoch`, unless a newer committed cut has arrived; drop all others."""
        for (staged_for, partition), (name, cut) in self._staged.items():
            known = self._cuts.get(partition)
            if staged_for == epoch and (known is None or known[0] < name):
                self._cuts[partition] = (name, cut)
                self._owned.pop(partition, None)
        self._staged.clear()

    def stage(self, epoch: int, partition: int, name: CutId, cut: Cut) -> None:
        """Prepare to back up a partition in `epoch`, with its part of the cut committed by then."""
        self._staged[epoch, partition] = (name, cut)

    def is_staged(self, epoch: int, partition: int) -> bool:
        """True when the partition's part for `epoch` is staged."""
        return (epoch, partition) in self._staged

    def adopt(self, view: View, me: str) -> None:
        """Keep the partitions that a durable view gives to this machine, and the parts that arrived in its epoch."""
        mine = {p for p, node in enumerate(view.backup) if node == me}
        self._unstage(view.epoch)
        self._cuts = {p: named for p, named in self._cuts.items() if p in mine}
        self._owned = {p: tables for p, tables in self._owned.items() if p in mine}
        self._arriving = {p: part for p, part in self._arriving.items() if part.name.epoch == view.epoch}

    def resend(self) -> None:
        """Report the uncommitted parts to the controller again."""
        for partition, arriving in self._arriving.items():
            self.send(CONTROLLER, arriving.stored(partition))


class PartSaves:
    """Has each part written once, and repeats the outcome when the controller asks again."""

    def __init__(self, io: NodeIo, backup: Backup) -> None:
        self._me, self._send, self._ask = io.me, io.send, io.ask
        self._backup = backup
        self._saving: dict[int, CutId] = {}
        self._outcomes: dict[int, Saved | SaveFailed] = {}

    def saved(self, outcome: Saved | SaveFailed) -> None:
        """Report that a part was written, or could not be."""
        self._send(CONTROLLER, outcome)
        known = self._outcomes.get(outcome.partition)
        if known is None or known.cut <= outcome.cut:  # only the newest request is repeated
            self._outcomes[outcome.partition] = outcome

    def save(self, message: Save, view: View | None) -> None:
        """Have this backup's parts of the committed cut written, each once."""
        if view is None:
            return
        self._backup.commit(message.cut)
        held = {partition: cut for partition, name, cut in self._backup.parts() if name == message.cut}
        for partition in [p for p, node in enumerate(view.backup) if node == self._me]:
            outcome = self._outcomes.get(partition)
            if outcome is not None and outcome.cut == message.cut:
                self._send(CONTROLLER, outcome)
            elif self._saving.get(partition) == message.cut:
                continue
            elif partition in held:
                self._saving[partition] = message.cut
                self._ask(SavePart(message.cut, partition, held[partition]))
            else:
                reason = f"machine {self._me} has no part {partition} of the cut at clock {message.cut.clock}"
                self._send(CONTROLLER, SaveFailed(message.cut, partition, reason))
