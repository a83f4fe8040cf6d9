"""A cut is not whole, not of one time, or not kept. PROTOCOL: CUT."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agileml.core.controller.cut_keeper import CutKeeper
from agileml.core.cuts.rule import OpenCut
from agileml.core.node.backup import Backup
from agileml.core.node.shard.dirty_rows import RowLog, completed
from agileml.core.node.shard.shard import Shard
from agileml.core.protocol.inputs import CutJudged
from agileml.core.protocol.view import CutId
from tests.model.mutants.mutant import replaces

NO_EPOCH = -1


@replaces(Shard.__init__, mode="bsp", caught_by=3)
def momentum_is_not_in_the_cut(original, self, job, cut):
    """The optimizer starts over after a rollback or a move."""
    nothing = tuple(tuple(np.zeros_like(array) for array in slot) for slot in cut.state)
    original(self, job, replace(cut, state=nothing))


@replaces(Shard.__init__, mode="bsp", caught_by=13)
def cuts_share_rows_that_change(original, self, job, cut):
    """Sparse tables change in place, and the cut with them."""
    original(self, job, cut)
    self.blocks = cut.blocks


@replaces(RowLog.absorb, mode="bsp", caught_by=371)
def what_changed_is_forgotten_when_a_cut_is_aborted(original, self, later):
    """The next cut lacks rows that changed before the aborted one; the own copy has values of later."""


@replaces(RowLog.note, mode="bsp", caught_by=71)
def values_of_later_writes_are_put_aside(original, self, rows, old):
    """The own copy of a cut has values of later."""
    self.is_changed[rows] = False
    original(self, rows, old)


@replaces(RowLog.mark, mode="bsp", caught_by=18)
def a_moved_shard_takes_itself_for_the_committed_cut(original, self, rows):
    """The next cut lacks rows that changed before the move."""


@replaces(
    Backup.part,
    mode="bsp",
    safe="whoever names a cut says which one is committed, so parts of a cut that is still open build on that one",
)
def rows_are_added_to_any_cut(original, self, owner, message):
    """A cut has rows of two times."""
    name = self.name(message.partition)
    if message.only is not None and name is not None:
        message = replace(message, only=replace(message.only, base=name))
    original(self, owner, message)


@replaces(Backup.part, mode="sum", caught_by=210)
def rows_are_taken_where_no_cut_is(original, self, owner, message):
    """There is nothing to add them to when they are committed."""
    if message.only is not None:
        message = replace(message, only=replace(message.only, base=self.name(message.partition)))
    original(self, owner, message)


@replaces(completed, mode="bsp", caught_by=24)
def a_cut_that_others_were_given_is_written_to(original, part, only, base, own=()):
    """A checkpoint, or a shard that goes back, has rows of later."""
    return original(part, only, base, range(len(base.blocks)))


@replaces(Backup.part, mode="bsp", caught_by=12)
def a_part_commits_as_it_arrives(original, self, owner, message):
    """The committed cut is destroyed before the next one is whole."""
    original(self, owner, message)
    self.commit(CutId(message.cut.clock, message.epoch))


@replaces(OpenCut.is_whole, mode="bsp", caught_by=1)
def a_cut_commits_with_a_part_missing(original, self):
    """A rollback has nothing to go back to."""
    return self.next is not None and len(self.part_bytes) >= max(1, self._partitions - 1)


@replaces(Backup.adopt, mode="bsp", caught_by=26)
def a_late_view_drops_parts_of_its_own_epoch(original, self, view, me):
    """A part that was acknowledged is gone, and the cut never whole."""
    self._arriving.clear()
    original(self, view, me)


@replaces(Backup.prepare, mode="dense", caught_by=0)
def a_missed_view_loses_the_staged_backup(original, self, committed, tag):
    """The only copy of the committed cut is dropped."""
    original(self, committed, NO_EPOCH)


@replaces(Shard._cut, mode="asp", caught_by=1)
def asp_cuts_without_their_coverage(original, self, rows=None):
    """After a rollback or a move units are applied twice."""
    return replace(original(self, rows), counted=())


@replaces(
    OpenCut.is_open_at,
    mode="asp",
    safe="servers keep what is named until something later is, so none misses it; test_controller has the rule",
)
def a_whole_cut_is_named_anew(original, self, clock):
    """Its parts are replaced while it is being committed."""
    return clock == self.next


@replaces(CutKeeper.name_next, mode="bsp-held", caught_by=7)
def a_held_cut_is_not_waited_for(original, self):
    """The best parameters are overwritten while the driver reads them."""
    judged, self._judged = self._judged, self._control.record.committed.clock
    original(self)
    self._judged = judged


@replaces(CutKeeper.begin_epoch, mode="bsp-held", caught_by=573)
def a_cut_with_a_lost_part_is_held(original, self, *, is_torn):
    """Nobody can read it, so nobody judges it, and the next cut is never named."""
    original(self, is_torn=False)


@replaces(CutKeeper.on_event, mode="bsp-held", caught_by=6)
def an_old_judgement_counts_for_the_present_cut(original, self, event):
    """It came a second time, when another cut was held that nobody has judged."""
    held = self.held
    original(self, CutJudged(held) if isinstance(event, CutJudged) and held is not None else event)


@replaces(CutKeeper.limit, mode="bsp-held", caught_by=2, orderly=True)
def clocks_do_not_wait_for_the_cut_that_is_to_be_held(original, self):
    """An owner is past the clock when the cut at it is named, so it can never be the best one."""
    return self._control.job.clocks


@replaces(CutKeeper._latest, mode="bsp-held", caught_by=210)
def a_cut_is_named_behind_a_clock_that_waits_for_its_own(original, self, version):
    """The cut is never reached, and the clock never begins."""
    return self._control.job.clocks
