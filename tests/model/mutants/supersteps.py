"""Supersteps whose minibatches meet no barrier, or whose log does not say what was computed. PROTOCOL: SUPERSTEPS."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.controller.step_log import StepLog
from agileml.core.protocol.job import Job
from agileml.core.supersteps.planner import SuperstepPlanner
from agileml.core.supersteps.shard import MinibatchShard
from tests.model.mutants.mutant import replaces


@replaces(SuperstepPlanner.plan, mode="elastic", caught_by=0)
def a_superstep_begins_while_others_work(original, self, worker, first, stop, now_s):
    """Whoever is late gets the newest superstep and never does his part of the one before."""
    self._working.clear()
    return original(self, worker, first, stop, now_s)


@replaces(SuperstepPlanner.plan, mode="elastic", caught_by=2)
def every_worker_has_a_plan_of_its_own(original, self, worker, first, stop, now_s):
    """Minibatches are nobody's, or two workers'."""
    found = original(self, worker, first, stop, now_s)
    last = self._deal.workers[-1]
    return replace(found, units=found.units[::-1]) if found is not None and worker == last else found


@replaces(SuperstepPlanner.meets_at, mode="elastic", caught_by=15, orderly=True)
def a_cut_is_named_where_nobody_meets(original, self, clock):
    """Everybody waits until the cut has another name."""
    return True


@replaces(MinibatchShard.is_at, mode="elastic", caught_by=71)
def a_cut_lies_in_a_superstep(original, self, clock):
    """It has steps that were computed from what is in no cut, and that nobody deals again."""
    return self.version == clock


@replaces(MinibatchShard.copy, mode="elastic", caught_by=1)
def the_log_of_steps_does_not_move(original, self, have=None):
    """Nobody knows any more in which order the steps were taken."""
    return replace(original(self, have), taken=())


@replaces(StepLog.has_all, mode="elastic", caught_by=13)
def a_cut_is_committed_without_its_log(original, self, partitions, steps):
    """Who goes back to it, or ends with it, does not know how it came about."""
    return True


@replaces(StepLog.roll_back, mode="elastic", caught_by=10)
def steps_that_a_rollback_undid_stay_in_the_log(original, self):
    """The log has the steps of two timelines."""


@replaces(Job.timeline_of, mode="elastic", caught_by=308)
def what_was_computed_under_an_older_view_counts(original, self, view):
    """The log says that a minibatch was computed from newer parameters than it was."""
    return view.timeline


@replaces(StepLog.add, mode="elastic", caught_by=37)
def steps_count_as_logged_before_they_are_written(original, self, message, timeline):
    """A controller that dies takes steps along that their owner has dropped."""
    event = original(self, message, timeline)
    self.written(message.partition, self._received[message.partition])
    return event


@replaces(StepLog.add, mode="elastic", caught_by=43)
def a_new_controller_believes_that_told_steps_are_written(original, self, message, timeline):
    """The steps that the dead one was told are in no log."""
    return original(self, replace(message, kept=message.first), timeline)
