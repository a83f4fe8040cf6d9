"""The owner's side of a cut: each partition's part goes to its backup, and again until the backup has it.

The controller names a cut; an owner takes it when its shard is at that clock, and sends the rows that changed since the
committed cut. A backup that lacks the committed cut refuses them and gets the whole part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from agileml.core.node.shard.shard import Shard
from agileml.core.protocol.messages import CONTROLLER, Message, Missed, NameCut, Part, PartAck, PartRefused
from agileml.core.protocol.view import INITIAL, CutId, View


class CutParts:
    """The parts of the open cut that the shards of one machine send to their backups."""

    def __init__(self, me: str, send: Callable[[str, Message], None]) -> None:
        self.committed = INITIAL
        self.begun: CutId | None = None  # the newest cut that is copied out of a replica here
        self._me = me
        self._send = send
        self._view: View | None = None
        self._next: CutId | None = None  # the cut that was named last
        self._unacked: dict[int, Part] = {}  # by partition
        self._copying: dict[int, Shard] = {}  # by partition, shards whose part is still being copied

    def name(self, message: NameCut, shards: Mapping[int, Shard]) -> None:
        """Record the committed cut, and have the shards of an epoch take the next one."""
        self._commit(message.committed)
        if message.next is None or (self._next is not None and message.next < self._next.clock):
            return  # nothing new, or a later message overtook this one
        self._next = CutId(message.next, message.epoch)
        for partition, shard in shards.items():
            if not self.is_owner(partition, message.epoch):
                continue
            shard.cuts.forget(self.committed, self._next)
            shard.cut_at = None
            if self._next in shard.cuts.known:
                continue
            if shard.version < self._next.clock:
                shard.cut_at = self._next
            elif shard.is_at(self._next.clock):
                shard.take_cut(self._next)
                self.stream(partition, shard)
            else:
                self._send(CONTROLLER, Missed(message.epoch, partition, self._next.clock, shard.version))

    def is_owner(self, partition: int, epoch: int) -> bool:
        """False for a replica when the view names another machine as the owner of the partition."""
        view = self._view
        return view is None or view.epoch != epoch or view.owner[partition] == self._me

    def _commit(self, committed: CutId) -> None:
        self.committed = max(self.committed, committed)
        for partition, part in list(self._unacked.items()):
            if CutId(part.cut.clock, part.epoch) <= self.committed:
                del self._unacked[partition]

    def stream(self, partition: int, shard: Shard) -> None:
        """Send the part of the open cut to the backup, once it is taken and the view names the backup."""
        if self._next is None or self._view is None or self._view.epoch != self._next.epoch:
            return
        part = shard.cuts.part(self._next)
        known = self._unacked.get(partition)
        if part is None or (known and CutId(known.cut.clock, known.epoch) == self._next):
            return
        if shard.resident is not None:
            self.begun = self._next
        if not shard.is_copied():
            self._copying[partition] = shard
            return
        is_finite = shard.resident is not None and shard.resident.is_finite_at(self._next.clock)
        self._unacked[partition] = Part(self._next.epoch, partition, self.committed, *part, is_finite)
        self._send(self._view.backup[partition], self._unacked[partition])

    def stream_copied(self) -> None:
        """Send the parts that have been copied meanwhile."""
        copying, self._copying = self._copying, {}
        for partition, shard in copying.items():
            self.stream(partition, shard)

    def acked(self, message: PartAck, shard: Shard | None) -> None:
        """Send the part no more: the backup has it."""
        part = self._unacked.get(message.partition)
        if part and part.epoch == message.epoch and part.cut.clock == message.clock:
            del self._unacked[message.partition]
            if shard:
                shard.cuts.stored()

    def refused(self, message: PartRefused, shard: Shard | None) -> None:
        """Send the whole part: the backup lacks the cut that the rows build on."""
        part = self._unacked.get(message.partition)
        name = CutId(message.clock, message.epoch)
        if self._view is None or part is None or shard is None or part.only is None or name != self._next:
            return
        if part.cut.clock == message.clock and (whole := shard.own_cut(name)) is not None:
            self._unacked[message.partition] = replace(part, cut=whole, only=None, is_finite=False)
            self._send(self._view.backup[message.partition], self._unacked[message.partition])

    def resend(self) -> None:
        """Send again the parts that no backup has acknowledged."""
        if self._view:
            for partition, part in self._unacked.items():
                self._send(self._view.backup[partition], part)

    def prepare(self, committed: CutId, shards: Mapping[int, Shard]) -> None:
        """End the open cut: the shards keep the committed one alone."""
        self._commit(committed)
        self._next = None
        self._unacked.clear()
        self._copying.clear()
        for shard in shards.values():
            shard.cut_at = None
            shard.cuts.forget(self.committed)

    def adopt(self, view: View, shards: Mapping[int, Shard]) -> None:
        """Send the parts to the backups of a durable view; a cut may have been named before it was known here."""
        self._view = view
        self._unacked.clear()
        self._copying.clear()
        for partition, shard in shards.items():
            if self.is_owner(partition, view.epoch):
                self.stream(partition, shard)
            else:
                shard.cut_at = None
                shard.cuts.forget()
