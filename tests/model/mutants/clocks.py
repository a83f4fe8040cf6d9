"""A unit counts twice or not at all, or a clock reads another version than its own. PROTOCOL: CLOCK."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.node.shard.shard import Shard
from agileml.core.node.worker import Worker
from agileml.core.parameters.apply import apply_total
from agileml.core.parameters.fold import Contribution, Fold
from straggler.consistency import Bsp, Read, Ssp
from straggler.coverage import Verdict, judge
from tests.model.mutants.mutant import replaces


@replaces(Shard.push, mode="sum", caught_by=5)
def a_clock_counts_as_complete_early(original, self, clock, bundle, contribution, now_s, *, given=False):
    """A clock is applied without its last unit."""
    verdict = original(self, clock, bundle, contribution, now_s, given=given)
    waiting = self.pending.get(self.version)
    missing = self.job.all_units & ~waiting.counted if waiting else 0
    if missing.bit_count() == 1:
        nothing = Contribution((None,) * len(self.job.layout.tables))
        original(self, self.version, missing, nothing, now_s, given=True)
    return verdict


@replaces(Bsp.read, mode="bsp", caught_by=93)
def no_version_before_the_newest(original, self, clock, version, *, has_previous):
    """Redone work cannot read what its first run read."""
    answer = original(self, clock, version, has_previous=has_previous)
    return Read.BEHIND if answer is Read.PREVIOUS else answer


@replaces(Bsp.read, mode="bsp", caught_by=16)
def redone_work_reads_the_newest_version(original, self, clock, version, *, has_previous):
    """Redone work reads a mixture of versions."""
    return Read.WAIT if clock > version else Read.CURRENT


@replaces(Shard.copy, mode="bsp", caught_by=345)
def the_version_before_does_not_move(original, self, have=None):
    """A new owner cannot serve redone work."""
    return replace(original(self, have), previous=None)


@replaces(
    Worker.behind,
    mode="bsp",
    safe="without helpers a clock cannot end without a worker that it is dealt to; test_server has the rule",
)
def nobody_is_told_that_he_is_behind(original, self, message):
    """A worker waits for a clock that ended without it."""


@replaces(Shard.push, mode="bsp", caught_by=0)
def sums_in_the_order_of_arrival(original, self, clock, bundle, contribution, now_s, *, given=False):
    """Floats do not add associatively."""
    if clock >= self.version:
        self.pending.setdefault(clock, Fold(deterministic=False))
    return original(self, clock, bundle, contribution, now_s, given=given)


@replaces(apply_total, mode="bsp", caught_by=24)
def momentum_is_overwritten_under_a_cut(original, *arguments, **named):
    """A rollback to the own copy has a momentum of later."""
    return original(*arguments, **{**named, "state_in_place": True})


@replaces(Worker.adopt, mode="bsp", caught_by=13)
def contributions_survive_a_rollback(original, self, view):
    """The worker never sends again what was acknowledged in another timeline."""
    self.first_timeline = getattr(self, "first_timeline", view.timeline)
    original(self, replace(view, timeline=self.first_timeline))


@replaces(Ssp.read, mode="ssp", caught_by=0)
def ssp_reads_one_clock_too_old(original, self, clock, version, *, has_previous):
    """Staleness is not bounded by the slack."""
    answer = original(self, clock, version, has_previous=has_previous)
    return Read.CURRENT if clock == version + self.slack + 1 else answer


@replaces(judge, mode="asp", caught_by=8)
def asp_counts_twice(original, counted, bundle):
    """A message that comes twice is applied twice."""
    return Verdict.COUNT


@replaces(judge, mode="sum", caught_by=1)
def duplicates_count(original, counted, bundle):
    """A message that comes twice counts twice."""
    original(counted, bundle)
    return Verdict.COUNT
