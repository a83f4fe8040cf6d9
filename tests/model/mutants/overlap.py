"""A clock is computed from parameters of two versions, or waits for parameters that never come.

Long after a rollback the blocks of the abandoned timeline look like any others.
"""

from __future__ import annotations

from itertools import pairwise

from agileml.core.node.overlap.pull_batches import PullBatches
from agileml.core.node.worker import Worker
from tests.model.mutants.mutant import replaces


@replaces(Worker._ask_to_compute, mode="overlap", caught_by=1)
def forward_on_a_half_old_layer(original, self, reading, begin):
    """What is not here yet is read as the clock before had it."""
    before = self.__dict__.setdefault("before", {})
    for partition, blocks in before.items():
        reading.parts.setdefault(partition, blocks)
    order = original(self, reading, begin)
    before.update(reading.parts)
    return order


@replaces(Worker.adopt, mode="overlap", caught_by=274)
def blocks_of_an_abandoned_timeline_serve_again(original, self, view):
    """A forward that a rollback aborted left some: the clock of this name is another one now."""
    readings = list(self._reading.values())
    vars(self._carried)["clear"] = lambda: self._carried.carry(readings, but=None)
    original(self, view)
    del vars(self._carried)["clear"]


@replaces(Worker._abort, mode="overlap", caught_by=8)
def a_forward_waits_on_under_a_new_view(original, self, reading):
    """Nobody brings it what it lacks, and nothing else is computed meanwhile."""


@replaces(Worker._abort, mode="overlap", caught_by=8)
def what_was_aborted_counts_as_being_computed(original, self, reading):
    """Its bundles are not computed again."""
    computing = set(self.bundles._computing)
    original(self, reading)
    self.bundles._computing |= computing


@replaces(Worker.params, mode="overlap", caught_by=8)
def parameters_of_one_partition_acknowledge_all(original, self, message):
    """A push that was lost is not sent again, because another partition has counted its own."""
    if message.version > self.clock and message.clock > self.clock:
        for (clock, _), kept in self.bundles._kept.items():
            if clock == self.clock and len(kept.contributions) == len(self._mine):
                kept.acked |= set(self._mine)
    original(self, message)


@replaces(PullBatches.due, mode="batches", caught_by=0)
def only_the_first_batch_is_asked_for(original, self, reading, wanted):
    """Nobody asks for the others."""
    return [] if reading.asked else original(self, reading, wanted)


@replaces(PullBatches.due, mode="batches", caught_by=0)
def a_batch_of_which_something_is_here_counts_as_asked_for(original, self, reading, wanted):
    """A new view kept some blocks of it, and the others never come."""
    due = original(self, reading, wanted)
    batches = pairwise((0, *self.ends))
    whole = [p for start, stop in batches if due and start <= due[0] < stop for p in range(start, stop)]
    return due if reading.parts.keys().isdisjoint(whole) else []
