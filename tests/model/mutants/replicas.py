"""Replicas of a stage compute what is another one's, count a part twice, or stop for themselves, with a flush and
without."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.async_stages.versions import age_of, lag_of
from agileml.core.async_stages.walk import AsyncStageWalker
from agileml.core.async_stages.worker import AsyncStageWorker
from agileml.core.change.change_plan import _deal_to_stages, _is_torn, _stages
from agileml.core.exchange.stages import AsyncStageLinks, StageLinks
from agileml.core.node.server import Server
from agileml.core.protocol.commands import Crossed
from agileml.core.protocol.deal import Deal
from agileml.core.protocol.messages import Params
from agileml.core.protocol.view import StageGroup
from agileml.core.stage.pipeline_stages import place_stages
from agileml.core.stage.walk import StagePlace
from straggler.coverage import union
from tests.model.mutants.mutant import replaces

MODE = "flush-replicated"
ASYNC = "stash-replicated"


@replaces(_deal_to_stages, mode=MODE, caught_by=10)
def open_units_are_dealt_without_regard_to_what_is_counted(original, job, counted, share):
    """A partition that has a part of a bundle cannot count the rest."""
    return ((share[0][0], job.all_units),)


@replaces(_deal_to_stages, mode=MODE, caught_by=10)
def units_that_one_stage_has_counted_are_not_dealt(original, job, counted, share):
    """Other stages lack what only that one has."""
    has = union(counted)
    return tuple((node, bundle) for node, bundle in original(job, counted, share) if not bundle & has)


@replaces(place_stages, mode=MODE, caught_by=1)
def a_unit_is_at_two_replicas(original, *arguments):
    """Both push it."""
    placement = original(*arguments)
    pipeline = tuple(_overlapping(stage) for stage in placement.pipeline)
    return replace(placement, pipeline=pipeline)


def _overlapping(stage: StageGroup) -> StageGroup:
    (node, units), *others = stage.replicas
    return replace(stage, replicas=((node, units | 1 << units.bit_length()), *others)) if others else stage


@replaces(StagePlace.neighbour, mode=MODE, caught_by=1)
def a_unit_goes_to_the_first_replica_of_the_next_stage(original, self, unit, *, is_forward):
    """The one that has it waits for ever."""
    return self.stages[self.number + (1 if is_forward else -1)].machines[0]


@replaces(Deal.partitions, mode=MODE, caught_by=1)
def a_replica_reads_only_what_it_owns(original, self, worker):
    """It lacks the other layers of its stage."""
    return tuple(self.view.partitions_of(worker))


@replaces(StageLinks.pause, mode=MODE, caught_by=3)
def replicas_of_the_first_stage_stop_each_after_its_own_clock(original, self):
    """One begins a clock that the other does not."""
    if not self._is_asked:
        self._worker.may_leave = lambda clock: False
    self._is_asked = True


@replaces(StageLinks.pause, mode=MODE, caught_by=3)
def a_clock_that_one_replica_has_begun_is_held_back_from_the_others(original, self):
    """The clock under way never ends."""
    if self._is_first and not self._is_asked:
        self._server.hold = self._least
    self._is_asked = True


# -- without a flush ----------------------------------------------------------------------------------------


@replaces(Server._params, mode=ASYNC, caught_by=11)
def the_end_is_not_told_to_other_replicas(original, self, message, version, blocks):
    """They begin clocks that the owner of partition 0 does not wait for."""
    found = original(self, message, version, blocks)
    return Params(found.epoch, found.partition, found.clock, found.version, found.blocks)


@replaces(AsyncStageLinks.pause, mode=ASYNC, caught_by=13)
def the_end_lies_before_what_a_replica_has_begun(original, self):
    """One machine has units of a clock in flight that the others do not begin."""
    was_asked = self._is_asked
    original(self)
    if self._is_first and not was_asked and self._server.end > self._base:
        self._server.end -= 1


@replaces(lag_of, mode=ASYNC, caught_by=2)
def a_stage_waits_for_its_exchange(original, mode, stages, number):
    """Its weights are newer than the log says."""
    return original(mode, stages, number) - stages[number].overlaps


@replaces(age_of, mode="vertical_sync-replicated", caught_by=0)
def vertical_sync_forgets_the_exchange_of_the_first_stage(original, mode, stages, number):
    """Stages behind the first read weights that it did not have yet at the clock's forward."""
    return original(mode, stages, number) - (number > 0 and stages[0].overlaps)


@replaces(_stages, mode=ASYNC, caught_by=2)
def the_log_leaves_out_which_stages_overlap_their_exchange(original, *arguments):
    """A replay reads newer weights than the run."""
    return tuple(replace(each, overlapping=()) for each in original(*arguments))


@replaces(AsyncStageWorker.computed, mode=ASYNC, caught_by=2)
def sums_are_pushed_while_the_version_before_comes(original, self, event):
    """The version is over before this machine has it."""
    wanted, self._wanted = self._wanted, None
    original(self, event)
    if self._wanted is None:
        self._wanted = wanted


@replaces(_is_torn, mode=ASYNC, caught_by=131)
def a_part_of_a_clock_outlives_a_change(original, job, states):
    """Some units were computed on weights of another age than the rest."""
    return original(job, {p: replace(state, pending=()) for p, state in states.items()})


@replaces(AsyncStageWalker._end_at, mode=ASYNC, caught_by=26)
def the_end_is_passed_on_to_one_replica(original, self, run):
    """The others wait for units that nobody sends."""
    behind = () if run.place.is_last else run.place.stages[run.place.number + 1].machines[:1]
    for step in original(self, run):
        if isinstance(step, Crossed) and step.to in behind:
            yield step


@replaces(AsyncStageWorker.resend, mode=ASYNC, caught_by=2)
def sums_and_versions_are_sent_once(original, self):
    """A replica waits for ever for what the network lost."""
