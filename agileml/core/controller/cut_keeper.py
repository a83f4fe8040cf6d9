"""Cuts and checkpoints of a run: which cut is next, which is committed, which is saved as a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agileml.core.change.transfers import Transfer, through
from agileml.core.controller.control import Control
from agileml.core.cuts.checkpoint import Checkpoint, OpenSave, Unreadable
from agileml.core.cuts.rule import OpenCut
from agileml.core.cuts.run_end import RunEnding
from agileml.core.protocol.commands import Finished, HaltKind, Seal
from agileml.core.protocol.inputs import CutJudged, Sealed, SealFailed
from agileml.core.protocol.messages import Missed, NameCut, Save, Saved, Stored
from agileml.core.protocol.view import CutId
from agileml.core.stage.link_rate import LinkRate
from agileml.events.run import CheckpointFailed, CheckpointSaved, CutCommitted


class CutKeeper:
    """Names cuts, commits whole ones and has them saved. One cut and one checkpoint are open at a time."""

    def __init__(self, control: Control, checkpoint: Checkpoint | Unreadable | None) -> None:
        self._control = control
        self._partitions = control.job.layout.partitions
        self._cut = OpenCut(self._partitions)
        self._travel_s = 0.0  # of the newest committed cut
        self.part_bytes: Mapping[int, int] = {}  # by partition, of that cut
        self.links = LinkRate(control.settings.links)
        self._unread = checkpoint.reason if isinstance(checkpoint, Unreadable) else ""
        known = None if isinstance(checkpoint, Unreadable) else checkpoint
        self._save = OpenSave(control.settings.checkpoint_every_s, self._partitions, known)
        self.ending = RunEnding(control.job.clocks)
        self._judged = 0  # the clock of the newest cut that was judged
        self.is_torn = False  # a part of the committed cut is on no machine any more
        control.limit_by(self.limit)

    @property
    def _lacks_steps(self) -> bool:
        """True while the log lacks steps of the open cut, where it is to have all."""
        job, clock = self._control.job, self._cut.next
        if job.elastic is None or clock is None:
            return False
        return not self._control.steps.has_all(range(self._partitions), clock * job.units)

    @property
    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint."""
        return self._save.newest

    @property
    def unread(self) -> str:
        """Why the newest checkpoint is unknown; empty if it is known."""
        return self._unread if self._save.newest is None else ""

    @property
    def is_done(self) -> bool:
        """True when the cut that the run ends with is committed and no checkpoint is being written."""
        return self._is_last and self._save.cut is None

    @property
    def _is_last(self) -> bool:
        # No result can be read from a cut that lacks a part: the run goes on to the next one.
        return not self.is_torn and self.ending.is_last(self._control.record.committed, self._control.now_s)

    @property
    def held(self) -> int | None:
        """The clock of the committed cut, if it must stay until it was judged."""
        every, clock = self._control.job.holds_every, self._control.record.committed.clock
        if every is None or clock == 0 or clock % every or clock == self._judged or self._is_last:
            return None
        if self.is_torn:  # no set of machines has all its parts; the next cut replaces it
            return None
        return clock

    @property
    def held_cut(self) -> Finished | None:
        """The held cut and where its parts are, while no change moves them."""
        view, clock = self._control.view, self.held
        if clock is None or view is None or self._control.change is not None:
            return None
        return Finished(clock, view.backup)

    def on_event(self, event: Sealed | SealFailed | CutJudged) -> None:
        """Record that a checkpoint ended, or that the driver has judged the held cut, which is then released."""
        match event:
            case Sealed():
                self._save.sealed(event.name)
                self._control.note(CheckpointSaved(event.name.clock))
            case SealFailed():
                self.save_failed(event.name, event.reason)
            case CutJudged() if event.clock == self.held:
                self._judged = event.clock

    def begin_epoch(self, *, is_torn: bool) -> None:
        """Drop the cut that was open under the previous view, because a new view is durable.

        is_torn: no machine has a certain part of the committed cut any more.
        """
        self._cut = OpenCut(self._partitions)
        self.is_torn = is_torn

    # -- cuts -----------------------------------------------------------------------------------------------

    def stored(self, message: Stored) -> None:
        """Record that a backup has its part of the open cut. NaN or infinity ends the run at the committed cut."""
        if not message.is_finite and self._cut.is_open_at(message.clock):
            self._control.halt(
                HaltKind.USER_CODE,
                f"clock {message.clock}: parameters of partition {message.partition} are not finite: the training "
                "diverged (a lower learning rate may help)",
            )
            return
        self._cut.stored(message.partition, message.clock, message.size_bytes)

    def missed(self, message: Missed) -> None:
        """Name a later clock: an owner was already past the named one."""
        if self._cut.is_open_at(message.clock):
            interval = self._interval(message.version)
            self._cut.missed(message.version, interval, self._latest(message.version))
            self.send_cut()

    def commit(self) -> bool:
        """Write the open cut as the committed one, if it is whole, and so is the log of its steps."""
        control = self._control
        self._cut.reached(control.reached, control.now_s)
        if not self._cut.is_whole or self._lacks_steps:
            return False
        self._travel_s = self._cut.travel_s(control.now_s)
        assert self._cut.next is not None
        view = control.durable
        self.part_bytes = self._cut.part_bytes
        if self._cut.left_s is not None:
            moved = [Transfer(view.owner[p], view.backup[p], size) for p, size in self.part_bytes.items()]
            self.links.arrived(
                through([t for t in moved if t.source != t.to]), self._cut.left_s, control.now_s
            )
        committed = CutId(self._cut.next, view.epoch)
        control.persist(replace(control.record, committed=committed), self.committed)
        return True

    def arriving(self) -> tuple[int, float] | None:
        """The clock of the cut in transit, and the estimated seconds until it is whole.

        It should take as long as the previous cut; once overdue, the remaining time is estimated as the overdue time.
        """
        if self._cut.next is None or self._cut.left_s is None:
            return None
        so_far_s = self._cut.travel_s(self._control.now_s)
        return self._cut.next, 0.0 if self._cut.is_whole else abs(self._travel_s - so_far_s)

    def committed(self) -> None:
        """Report the cut, which is durable as the committed one now, and tell all members."""
        self._control.note(CutCommitted(self._control.record.committed.clock, self._travel_s))
        self._cut.next = None
        self.is_torn = False
        self.send_cut()

    def name_next(self) -> None:
        """Name the next cut, unless one is open or the last one is committed."""
        control = self._control
        committed = control.record.committed.clock
        if control.view is None or self._cut.next is not None or self._is_last or self.held is not None:
            return
        version = max(control.view.base, committed, control.reached)
        self._cut.name(version, self._interval(version), control.job.clocks)
        self.send_cut()

    @property
    def _apart(self) -> int:
        """With supersteps, the clocks from cut to cut. 0 for a view's first cut: an early loss costs little."""
        control = self._control
        rule, clock_s = control.settings.cuts, control.log.clock_s
        if control.view is None or control.record.committed.epoch != control.view.epoch or not clock_s:
            return 0
        return min(int(rule.most * rule.every_s / clock_s), control.steps.least_clocks(control.job.units))

    def _interval(self, version: int) -> int:
        """Clocks from `version` to the next cut.

        Never skip a clock whose cut will be held. Skip the cut before it if clocks would have to wait for that cut.
        """
        control = self._control
        interval = max(control.settings.cuts.interval(control.log.clock_s, self._travel_s), self._apart)
        if control.job.holds_every is None:
            return interval
        left = self._next_held(version) - version
        return left if left <= 2 * interval else interval

    def _latest(self, version: int) -> int:
        """The latest clock for the next cut. Training stops at a clock that will be held until a cut is named there, so
        it would never reach a later one."""
        clocks = self._control.job.clocks
        return clocks if self._control.job.holds_every is None else min(clocks, self._next_held(version))

    def _next_held(self, version: int) -> int:
        """The clock of the first cut from `version` on that will be held."""
        every = self._control.job.holds_every
        assert every is not None
        first = max(1, -(-version // every)) * every
        return first + every if first == self._control.record.committed.clock else first

    def limit(self) -> int:
        """Clocks >= the limit may not start yet: training stops at a clock that will be held until its cut is named."""
        control = self._control
        if control.job.holds_every is None or control.view is None:
            return control.job.clocks
        first = self._next_held(max(control.view.base, control.record.committed.clock, control.reached))
        return first + control.job.holds_every if self._cut.next == first else first

    def send_cut(self) -> None:
        """Tell all members the committed cut and the next one."""
        control, view = self._control, self._control.durable
        for node in view.members:
            control.send(node, NameCut(view.epoch, control.record.committed, self._cut.next))
        if control.job.holds_every is not None:
            control.send_limit()

    # -- checkpoints ----------------------------------------------------------------------------------------

    def begin_save(self) -> bool:
        """Have the committed cut saved as a checkpoint, if one is due."""
        control = self._control
        committed = control.record.committed
        if self._save.begin(committed, control.now_s, is_last=self._is_last) is None:
            return False
        self.send_save()
        return True

    def send_save(self) -> None:
        """Ask the backups to save the parts of the open checkpoint."""
        if self._save.cut is not None:
            for node in sorted(set(self._control.durable.backup)):
                self._control.send(node, Save(self._save.cut))

    def saved(self, message: Saved) -> None:
        """Record that a part is written. After the last one, have the manifest written."""
        if (parts := self._save.saved(message)) is not None:
            self._control.ask(Seal(message.cut, tuple(parts)))

    def save_failed(self, name: CutId, reason: str) -> None:
        """Drop this checkpoint: a part or the manifest could not be written."""
        if self._save.failed(name):
            self._control.note(CheckpointFailed(name.clock, reason))

    def resend(self) -> None:
        """Repeat unanswered requests."""
        control = self._control
        if control.record.committed.clock < control.job.clocks or self._cut.next is not None:
            self.send_cut()
        self.send_save()
