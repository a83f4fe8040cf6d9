"""In a pipeline without a flush: weights of another version, a change in the middle of clocks, a log that says less."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.async_stages.versions import age_of, steps_over, version_of
from agileml.core.async_stages.walk import AsyncStageWalker
from agileml.core.async_stages.worker import AsyncStageWorker
from agileml.core.change.change_plan import _is_torn, _stages
from agileml.core.controller.changes import MembershipChanges
from agileml.core.exchange.pause import AsyncStagePause
from agileml.core.exchange.stages import AsyncStageLinks
from agileml.core.protocol.job import PipelineMode
from agileml.core.protocol.messages import LastParams
from agileml.core.stage.walk import Crossings
from tests.model.mutants.mutant import replaces


@replaces(AsyncStageWalker.walk, mode="stash", caught_by=0)
def stashed_weights_are_dropped_early(original, self, *arguments):
    """A backward is not the gradient of its forward."""
    self._mode = PipelineMode.NONE
    return original(self, *arguments)


@replaces(AsyncStageWalker.walk, mode="none", caught_by=2)
def weights_are_stashed_that_should_not_be(original, self, *arguments):
    """The comparison compares nothing."""
    self._mode = PipelineMode.STASH
    return original(self, *arguments)


@replaces(version_of, mode="stash", caught_by=0)
def a_forward_reads_a_version_too_old(original, clock, first, lag):
    """A stage waits a clock longer for its backwards than its place demands."""
    return max(first, original(clock, first, lag + 1)) if lag else original(clock, first, lag)


@replaces(age_of, mode="vertical_sync", caught_by=2)
def vertical_sync_is_off_by_one(original, mode, stages, number):
    """Stages behind the first read weights that it did not have yet at the clock's forward."""
    return original(mode, stages, number) - (number > 0)


@replaces(age_of, mode="double_buffered", caught_by=1)
def the_last_stage_reads_its_newest_weights(original, mode, stages, number):
    """Its weights are not those of the clock before."""
    return original(mode, stages, number) if number < len(stages) - 1 else 0


@replaces(steps_over, mode="double_buffered", caught_by=24)
def a_step_is_over_with_the_clock_before(original, mode, clock, behind):
    """A change does not end the step, which waits for what a dead neighbour had to send."""
    return clock + min(behind, 1)


@replaces(AsyncStageWalker._end_at, mode="stash", caught_by=7)
def the_end_of_the_clocks_is_not_passed_on(original, self, run):
    """The stages behind wait for a clock that nobody begins."""
    self._end = run.job.clock
    yield from ()


@replaces(AsyncStageWorker.params, mode="stash", caught_by=4)
def the_first_stage_goes_on_while_it_is_asked_to_stop(original, self, message):
    """The pipeline never runs empty."""
    end = self._end
    original(self, replace(message, end=end) if isinstance(message, LastParams) else message)


@replaces(AsyncStageLinks.pause, mode="stash", caught_by=4)
def what_is_in_flight_keeps_the_limit(original, self):
    """Clocks that have begun wait for a limit that waits for them."""
    raised, self._server.raise_limit = self._server.raise_limit, lambda limit, now_s: None
    try:
        original(self)
    finally:
        self._server.raise_limit = raised


@replaces(AsyncStagePause._are_at_limit, mode="none", caught_by=4)
def the_limit_of_clocks_counts_as_empty(original, self, statuses):
    """A change comes in the middle of clocks though there was time to finish them."""
    versions = [version for status in statuses for _, version in status.versions]
    return bool(versions) and min(versions) >= self._control.limit


@replaces(_is_torn, mode="stash", caught_by=28)
def a_change_goes_on_from_stages_at_different_clocks(original, job, states):
    """The updates that some stages have are lost at others."""
    return False


@replaces(_stages, mode="stash", caught_by=2)
def a_rollback_does_not_undo_the_stages_of_its_clocks(original, job, view, base, placement):
    """The record tells stages that computed nothing which counts."""
    (*_, last) = original(job, view, base, placement)
    return (*(view.stages if view is not None else ()), last)


@replaces(MembershipChanges._note_stages, mode="stash", caught_by=6)
def a_new_controller_tells_only_the_newest_stages(original, self, view):
    """What the one before did not tell any more is not in the log."""
    self._has_noted_stages = True
    original(self, view)


@replaces(MembershipChanges._note_stages, mode="stash", caught_by=0)
def stages_are_told_for_another_clock(original, self, view):
    """The log has the pipeline empty a clock too late."""
    stages = tuple(replace(each, clock=each.clock + 1 if each.clock else 0) for each in view.stages)
    original(self, replace(view, stages=stages))


@replaces(Crossings.get, mode="stash", caught_by=0)
def a_stage_takes_the_activation_of_the_clock_before(original, self, at):
    """What is in flight gets mixed up."""
    other = original(self, replace(at, clock=at.clock - 1)) if at.is_forward else None
    found = original(self, at)
    return other if found is not None and other is not None and not found.ends else found
