"""The reliable copies: of every backed-up partition the committed cut and the one that is arriving."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from agileml.core.messages import CONTROLLER, Cut, Part, PartAck, ShardState, Stored
from agileml.core.server import SendTo
from agileml.core.view import INITIAL, CutId, View


@dataclass
class Backup:
    """Holds cuts. A part counts as committed only when the controller says that the whole cut is."""

    send: SendTo
    committed: CutId = INITIAL
    _cuts: dict[int, tuple[CutId, Cut]] = field(default_factory=dict)  # partition -> its part, committed
    _arriving: dict[int, tuple[CutId, Cut]] = field(default_factory=dict)
    _staged: dict[tuple[int, int], tuple[CutId, Cut]] = field(default_factory=dict)  # (epoch, partition)

    def part(self, owner: str, message: Part) -> None:
        """Keep a part of the open cut."""
        self.commit(message.committed)
        name = CutId(message.cut.clock, message.epoch)
        known = self._arriving.get(message.partition)
        if name > self.committed and (known is None or known[0] <= name):
            self._arriving[message.partition] = (name, message.cut)
            self.send(CONTROLLER, Stored(message.epoch, message.partition, name.clock))
        self.send(owner, PartAck(message.epoch, message.partition, name.clock))

    def commit(self, committed: CutId) -> None:
        """The cut `committed` is durable: its parts replace the ones before."""
        if committed <= self.committed:
            return
        self.committed = committed
        for partition, (name, cut) in list(self._arriving.items()):
            if name == committed:
                self._cuts[partition] = (name, cut)
            if name <= committed:
                del self._arriving[partition]

    def held(self) -> tuple[tuple[int, ShardState], ...]:
        """The partitions whose part of the committed cut is here, and its coverage."""
        return tuple(
            (p, ShardState(cut.clock, cut.counted))
            for p, (name, cut) in sorted(self._cuts.items())
            if name == self.committed
        )

    def cut(self, partition: int) -> Cut | None:
        """The partition's part of the committed cut, if it is here."""
        name, cut = self._cuts.get(partition, (None, None))
        return cut if name == self.committed else None

    def parts(self) -> Iterator[tuple[int, CutId, Cut]]:
        """(partition, name, cut) of everything that is committed here."""
        for partition, (name, cut) in sorted(self._cuts.items()):
            yield partition, name, cut

    def arrived(self, partition: int) -> Cut | None:
        """The partition's part of the open cut, if it is here."""
        arriving = self._arriving.get(partition)
        return arriving[1] if arriving else None

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
        self._arriving = {
            p: (name, cut) for p, (name, cut) in self._arriving.items() if name.epoch == view.epoch
        }

    def resend(self) -> None:
        """Tell the controller again of parts that it has not committed."""
        for partition, (name, _) in self._arriving.items():
            self.send(CONTROLLER, Stored(name.epoch, partition, name.clock))
