"""Partitions of one clock are scaled by different norms, or wait for a norm that never comes."""

from __future__ import annotations

from agileml.core.exchange.reducer import Reducer
from agileml.core.node.shard.clock_squares import ClockSquares
from agileml.core.node.shard.norm_round import NormRound
from agileml.core.node.shard.shard import Shard
from agileml.core.parameters.gradient_norm import norm
from tests.model.mutants.mutant import replaces


@replaces(ClockSquares.norm, mode="bsp-clipped", caught_by=2)
def a_partition_scales_by_its_own_norm(original, self, clock):
    """The gradient is another one for every arrangement of partitions."""
    return norm([self._sums[clock][self._partition]])


@replaces(ClockSquares.forget, mode="dense-clipped", caught_by=0)
def squares_are_forgotten_when_they_are_used(original, self, version):
    """An owner that did not hear them never will."""
    original(self, version + self._behind)


@replaces(NormRound.ask, mode="dense-clipped", caught_by=4)
def nobody_asks_for_squares_again(original, self, view, shards):
    """The message is lost, and its partition stays at its clock."""


@replaces(NormRound.told_all, mode="dense-clipped", caught_by=15)
def a_new_owner_is_not_told_what_was_added_up_before(original, self, view, shards):
    """Only a repeat brings the squares to who has the partition now."""
    return []


@replaces(Shard.hear, mode="ssp-clipped", caught_by=14, orderly=True)
def squares_of_later_clocks_are_dropped(original, self, clock, partition, sums, now_s):
    """A partition that is a clock ahead has said them once."""
    if clock == self.version:
        original(self, clock, partition, sums, now_s)


@replaces(Reducer.prepare, mode="allreduce-clipped", caught_by=772)
def sums_that_wait_for_the_norm_are_taken_for_a_machines_own(original, self):
    """The group has written its sums over what the machine computed."""
    self._held.clear()
    original(self)
