"""The worker of a node: which bundles of which clock to compute, and until when to keep them. PROTOCOL: CLOCK.

A clock: find out what the bundles read, pull it from every partition, compute, push to every partition, go on when
all have acknowledged. A contribution is kept until then, so that a change of members in between needs no second
computation; it is dropped when a rollback starts another timeline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agileml.application import Array
from agileml.core.commands import Begin, Begun, Compute, Computed, NodeCommand
from agileml.core.fold import Contribution
from agileml.core.job import Job
from agileml.core.messages import Ack, Behind, Message, Params, Pull, Push
from agileml.core.view import View
from straggler.coverage import Units, aligned_subtrees


@dataclass
class _Kept:
    contributions: tuple[Contribution, ...]
    acked: set[int] = field(default_factory=set)


class Worker:
    """Walks through the clocks of a view. It knows no other worker and asks nobody for permission."""

    def __init__(
        self, me: str, job: Job, send: Callable[[str, Message], None], ask: Callable[[NodeCommand], None]
    ) -> None:
        self.me = me
        self.job = job
        self.clock = 0
        self._send = send
        self._ask = ask
        self._view: View | None = None
        self._kept: dict[tuple[int, Units], _Kept] = {}
        self._computing: set[tuple[int, Units]] = set()  # of this timeline, at the shell
        self._begin: Begin | None = None
        self._rows: tuple[tuple[Array | None, ...], ...] | None = None
        self._parts: dict[int, tuple[Array, ...]] = {}

    def adopt(self, view: View) -> None:
        """Go on under a new view, from its base clock."""
        if self._view is None or view.timeline != self._view.timeline:
            self._kept.clear()
            self._computing.clear()
        self._view = view
        self.clock = view.base
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] >= view.base}
        self._start()

    def bundles(self, clock: int) -> tuple[Units, ...]:
        """What this worker contributes to a clock under the present view."""
        assert self._view is not None
        dealt = self._view.open_at.get(clock)
        if dealt is not None:
            return tuple(bundle for worker, bundle in dealt if worker == self.me)
        share = self._view.share_of.get(self.me, 0)
        if not share:
            return ()
        return tuple(aligned_subtrees(share)) if self.job.deterministic else (share,)

    def _start(self) -> None:
        """Begin the next clock that has something for this worker."""
        assert self._view is not None
        self._begin, self._rows, self._parts = None, None, {}
        last_open = max(self._view.open_at, default=-1)
        while not (bundles := self.bundles(self.clock)):
            if self.clock > last_open:
                return  # no worker under this view, or none any more
            self.clock += 1
        if self.clock >= self.job.clocks:
            return
        for bundle in bundles:
            if (kept := self._kept.get((self.clock, bundle))) is not None:
                self._push(bundle, kept)
        missing = tuple(
            bundle
            for bundle in bundles
            if (self.clock, bundle) not in self._kept and (self.clock, bundle) not in self._computing
        )
        if missing:
            self._begin = Begin(self._view.timeline, self.clock, missing)
            self._ask(self._begin)
        else:
            self._go_on()

    def begun(self, event: Begun) -> None:
        """What the bundles read is known: pull it."""
        if event.begin == self._begin:
            self._rows = event.rows
            self._pull()

    def _pull(self) -> None:
        assert self._view is not None
        if self._rows is None:
            return
        for partition, rows in enumerate(self._rows):
            if partition not in self._parts:
                owner = self._view.owner[partition]
                self._send(owner, Pull(self._view.epoch, partition, self.clock, rows))

    def params(self, message: Params) -> None:
        """One partition's blocks; with the last one the computing starts."""
        if message.clock != self.clock or self._rows is None or message.partition in self._parts:
            return
        self._parts[message.partition] = message.blocks
        if len(self._parts) < self.job.layout.partitions:
            return
        begin = self._begin
        assert begin is not None
        parts = tuple(self._parts[p] for p in range(self.job.layout.partitions))
        self._begin, self._rows, self._parts = None, None, {}
        self._computing |= {(begin.clock, bundle) for bundle in begin.bundles}
        self._ask(Compute(begin.timeline, begin.clock, begin.bundles, parts))

    def behind(self, message: Behind) -> None:
        """That clock is done everywhere without this worker: go to the next."""
        if message.clock == self.clock:
            self._leave_clock()

    def computed(self, event: Computed) -> None:
        """Push a contribution if it is still wanted."""
        if self._view is None or event.timeline != self._view.timeline:
            return
        key = (event.clock, event.bundle)
        self._computing.discard(key)
        if event.clock < self.clock or event.bundle not in self.bundles(event.clock):
            return
        kept = self._kept[key] = _Kept(event.contributions)
        if event.clock == self.clock:
            self._push(event.bundle, kept)

    def _push(self, bundle: Units, kept: _Kept) -> None:
        assert self._view is not None
        for partition, contribution in enumerate(kept.contributions):
            if partition not in kept.acked:
                owner = self._view.owner[partition]
                self._send(owner, Push(self._view.epoch, partition, self.clock, bundle, contribution))

    def ack(self, message: Ack) -> None:
        """A partition has counted a bundle."""
        kept = self._kept.get((message.clock, message.bundle))
        if kept is not None:
            kept.acked.add(message.partition)
            if message.clock == self.clock:
                self._go_on()

    def _go_on(self) -> None:
        """To the next clock once every partition has every bundle of this one."""
        everywhere = self.job.layout.partitions
        for bundle in self.bundles(self.clock):
            kept = self._kept.get((self.clock, bundle))
            if kept is None or len(kept.acked) < everywhere:
                return
        self._leave_clock()

    def _leave_clock(self) -> None:
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] > self.clock}
        self.clock += 1
        self._start()

    def resend(self) -> None:
        """Everything of this clock that has not been answered."""
        if self._view is None:
            return
        self._pull()
        for bundle in self.bundles(self.clock):
            if (kept := self._kept.get((self.clock, bundle))) is not None:
                self._push(bundle, kept)
