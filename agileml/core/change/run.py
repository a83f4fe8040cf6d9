"""The progress of a membership change. No step before COMMIT destroys state of the durable view, so a new epoch can
start over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from agileml.core.change.change_plan import Change
from agileml.core.change.membership import Membership
from agileml.core.protocol.messages import Fetch, Installed, Promise, Role
from agileml.core.protocol.view import NOBODY
from agileml.events.terms import Tier, Trigger


class ChangePhase(Enum):
    """The steps of a change. CLAIM and COMMIT end when their record is durable."""

    CLAIM = "claim"
    PREPARE = "prepare"
    INSTALL = "install"
    COMMIT = "commit"


@dataclass
class ChangeRun:
    """One attempt at a membership change, under one epoch."""

    epoch: int
    trigger: Trigger
    started_s: float
    phase: ChangePhase = ChangePhase.CLAIM
    change: Change | None = None
    promises: dict[str, Promise] = field(default_factory=dict)
    installing_since_s: float = 0.0
    waiting_since_s: float | None = None  # for a silent machine with the only copy of something
    # The fetches of `change` that are not answered yet, and how many of them have each source; None before the first
    # question about them. There are as many as machines times partitions, and each answer asks again what is left.
    _open: dict[tuple[str, int, Role], Fetch] | None = None
    _sources: Counter[str] = field(default_factory=Counter)
    _asked: set[str] = field(default_factory=set)

    def unasked(self, nodes: Iterable[str]) -> list[str]:
        """Return those of `nodes` that were not asked for a promise yet, and count them as asked."""
        found = [node for node in nodes if node not in self._asked]
        self._asked.update(found)
        return found

    def promise(self, node: str, message: Promise) -> None:
        """Record that a machine has promised the epoch and frozen its shards."""
        if self.phase is ChangePhase.PREPARE and message.epoch == self.epoch:
            self.promises[node] = message

    def installed(self, node: str, message: Installed) -> None:
        """Record that a machine is ready for a role in the next view."""
        if self.phase is not ChangePhase.INSTALL or message.epoch != self.epoch:
            return
        answered = self._left().pop((node, message.partition, message.role), None)
        if answered is not None:
            self._sources[answered.source.node] -= 1
            if not self._sources[answered.source.node]:
                del self._sources[answered.source.node]

    def unpromised(self, nodes: Iterable[str]) -> list[str]:
        """The machines among `nodes` that have not promised yet."""
        return [node for node in nodes if node not in self.promises]

    def outstanding(self) -> Iterator[tuple[str, Fetch]]:
        """The fetches that are not answered yet, with the node of each."""
        for (node, _, _), fetch in self._left().items():
            yield node, fetch

    def _left(self) -> dict[tuple[str, int, Role], Fetch]:
        assert self.change is not None
        if self._open is None:
            self._open = {(node, fetch.partition, fetch.role): fetch for node, fetch in self.change.fetches}
            self._sources = Counter(fetch.source.node for fetch in self._open.values())
        return self._open

    def is_good(self, members: Membership) -> bool:
        """False when a machine that the change still needs has died or got a notice since it was planned."""
        assert self.change is not None
        # A source may leave once it has sent everything requested from it.
        self._left()
        sources = self._sources.keys() - {NOBODY}
        counted_on = self.change.view.members
        if not all(members.is_alive(node) for node in {*counted_on, *sources}):
            return False
        holders = self.change.view.holders
        leaving = [n for n in counted_on if n in holders and members.nodes[n].deadline_s is not None]
        reliable = [node for node in counted_on if members.nodes[node].tier is Tier.RELIABLE]
        # Reliable machines stay until there is another, whether each of them holds something or not.
        has_staying = any(members.nodes[node].deadline_s is None for node in reliable)
        return not leaving or (not has_staying and set(leaving) <= set(reliable))
