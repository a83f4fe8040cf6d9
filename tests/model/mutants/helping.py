"""Machines that help each other disagree about who computes which units, or compute them from other parameters."""

from __future__ import annotations

from agileml.core.compute.cursor import Cursor
from agileml.core.node.bundles import WorkerBundles
from agileml.core.node.help.given_range import GivenRanges
from agileml.core.node.help.helping import Helping
from agileml.core.node.worker import Worker
from straggler.flexrr.help_queue import HelpQueue
from straggler.flexrr.protocol import CancelAck
from straggler.flexrr.worker import FlexRrWorker
from tests.model.mutants.mutant import replaces


@replaces(Cursor.end_at, mode="bsp-helped", caught_by=1)
def who_gives_units_away_computes_them_too(original, self, stop):
    """The same units are in two bundles, which overlap in part."""


@replaces(FlexRrWorker._offer, mode="sum-helped", caught_by=0)
def an_offer_goes_beyond_the_tail(original, self, helper, share, now_ns):
    """The last unit that the worker keeps is in the range that it gives away."""
    before = self.stop
    original(self, helper, share, now_ns)
    if self.stop < before:
        self.stop += 1


@replaces(GivenRanges.over, mode="dense-helped", caught_by=0)
def a_helper_reads_the_version_of_an_earlier_clock(original, self, clock):
    """It has whole parameters already, and takes them for those of the next clock."""
    if self._known is not None and self._known[0] <= clock:
        self._known = clock + 1, self._known[1]


@replaces(Worker.adopt, mode="dense-helped", caught_by=3)
def what_a_dead_helper_took_stays_given_away(original, self, view):
    """Nobody computes it."""
    recut = dict(self.bundles._recut)
    original(self, view)
    self.bundles._recut = {clock: kept for clock, kept in recut.items() if clock >= view.base}


@replaces(WorkerBundles.dealt_to, mode="dense-helped-planned", caught_by=0)
def a_helper_takes_units_of_the_share_where_a_clock_has_a_plan(original, self, worker, clock):
    """It computes units that the plan has dealt to somebody else."""
    return dict(self._deal.view.share).get(worker, 0)


@replaces(HelpQueue.cancel, mode="sum-helped", caught_by=1)
def a_cancel_is_answered_as_if_work_had_begun(original, self, helpee, cancel):
    """The helper drops the range, and its owner waits for it."""
    original(self, helpee, cancel)
    return CancelAck(cancel.assignment, begun=True)


@replaces(FlexRrWorker._on_cancel_ack, mode="ssp-helped", caught_by=0)
def a_cancel_needs_no_acknowledgement(original, self, message, now_ns):
    """What was taken back is never pushed."""


@replaces(Helping.may_leave, mode="ssp-helped", caught_by=0)
def a_clock_ends_with_units_still_given_away(original, self, clock):
    """The next one begins while the state of this one is open."""
    return True


@replaces(Helping.resend, mode="bsp-helped", caught_by=14)
def a_lost_push_of_a_helper_is_not_repeated(original, self):
    """Its owner was told that it is computed."""
