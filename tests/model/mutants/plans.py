"""Machines disagree about who computes which units of a planned clock, or wait for a plan that never comes."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.change import change_plan
from agileml.core.exchange.reducer import Reducer
from agileml.core.node.clock_plans import ClockPlans
from agileml.core.node.reading import CarriedBlocks
from agileml.core.protocol.deal import Deal
from tests.model.mutants.mutant import replaces


@replaces(Deal.bundles, mode="dense-planned", caught_by=1)
def a_clock_begins_before_its_plan_is_known(original, self, clock, worker):
    """A worker takes the view's share for a clock that has a plan, and stays with it. One alone: if all did so, they
    would agree again."""
    found = original(self, clock, worker)
    guessed = self.__dict__.setdefault("guessed", {})
    if found is None and worker == self.view.workers()[0]:
        guessed[clock] = self._share[worker]
    return guessed.get(clock, found)


@replaces(ClockPlans.for_answer, mode="sum-planned", caught_by=0)
def every_answer_has_a_plan_of_its_own(original, self, clock):
    """A clock has two plans."""
    self._newest = -1
    return original(self, clock)


@replaces(ClockPlans.for_answer, mode="bsp-planned", caught_by=0)
def a_plan_is_told_once(original, self, clock):
    """Who asks later, or again because the answer was lost, never hears it."""
    told = self.__dict__.setdefault("told", set())
    plan = None if clock in told else original(self, clock)
    told.add(clock)
    return plan


@replaces(CarriedBlocks.carry, mode="dense-planned", caught_by=4)
def blocks_of_partition_0_are_kept_through_a_change(original, self, readings, *, but):
    """The plan that came with them was of another epoch, and nobody asks for the new one."""
    original(self, readings, but=None)


@replaces(Deal.is_planned, mode="bsp-planned", caught_by=0)
def the_first_clocks_of_a_view_are_planned(original, self, clock):
    """Their plan would have had to come before the view."""
    return self.job.balancer is not None and clock not in self.view.open_at


@replaces(Deal.bundles, mode="sum-planned", caught_by=12)
def an_open_clock_follows_a_plan(original, self, clock, worker):
    """Units that were dealt again by the change are computed by their former workers too."""
    found = original(self, clock, worker)
    if found is None or clock not in self.view.open_at or self.job.balancer is None:
        return found
    return self._share.get(worker, ())


@replaces(change_plan._deal, mode="sum-planned", caught_by=3)
def who_is_gone_keeps_what_the_plan_gave_him(original, job, had, clock, lacking, waiting, share, members):
    """Nobody computes the units that a dead machine had by the plan of an open clock."""
    planned = () if had is None or not had.is_planned(clock) else had.view.workers()
    return original(job, had, clock, lacking, waiting, share, (*members, *planned))


@replaces(Reducer.reduced, mode="allreduce-planned", caught_by=0)
def machines_of_a_group_plan_from_their_own_numbers(original, self, event, now_s):
    """Each comes to another plan."""
    if self._view is not None and event.compute_s:
        own = (
            s if node == self.me else 1.0 for node, s in zip(self._view.group, event.compute_s, strict=False)
        )
        event = replace(event, compute_s=tuple(own))
    original(self, event, now_s)
