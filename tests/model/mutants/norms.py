"""Partitions of one clock are scaled by different norms, or wait for a norm that never comes."""

from __future__ import annotations

import numpy as np

from agileml.core.exchange.reducer import Reducer
from agileml.core.node.shard.clock_sums import ClockSums
from agileml.core.node.shard.norm_round import NormRound
from agileml.core.node.shard.shard import Shard
from agileml.core.parameters.layout import Dense
from agileml.core.parameters.loss_scale import clock_sum
from tests.model.mutants.mutant import replaces


@replaces(ClockSums.of, mode="bsp-clipped", caught_by=2)
def a_partition_scales_by_its_own_norm(original, self, clock):
    """The gradient is another one for every arrangement of partitions."""
    return original(self, clock) and [self.own(clock)]


@replaces(ClockSums.of, mode="dense-lamb", caught_by=0)
def a_layer_is_as_long_as_its_part_here(original, self, clock):
    """Its parts in other partitions go along with another ratio."""
    return original(self, clock) and [self.own(clock)]


@replaces(clock_sum, mode="dense-scaled", caught_by=3)
def an_overflow_stops_the_partition_that_has_it(original, total, *arguments, **named):
    """The others take their step along a gradient of which a part is missing."""
    found = [block.values for block in total.blocks if isinstance(block, Dense)]
    is_finite = all(np.isfinite(values).all() for values in found)
    return original(total, *arguments, **{**named, "norm": 1.0 if is_finite else np.inf})


@replaces(ClockSums.forget, mode="dense-clipped", caught_by=0)
def squares_are_forgotten_when_they_are_used(original, self, version):
    """An owner that did not hear them never will."""
    original(self, version + self._behind)


@replaces(NormRound.ask, mode="dense-clipped", caught_by=4)
def nobody_asks_for_squares_again(original, self, view, shards):
    """The message is lost, and its partition stays at its clock."""


@replaces(NormRound.send_all, mode="dense-clipped", caught_by=39)
def a_new_owner_is_not_told_what_was_added_up_before(original, self, view, shards):
    """Only a repeat brings the squares to who has the partition now."""
    return []


@replaces(Shard.take_sums, mode="ssp-clipped", caught_by=14, orderly=True)
def squares_of_later_clocks_are_dropped(original, self, of, clock, partition, sums, now_s):
    """A partition that is a clock ahead has said them once."""
    if clock == self.version:
        original(self, of, clock, partition, sums, now_s)


@replaces(Reducer.prepare, mode="allreduce-clipped", caught_by=772)
def sums_that_wait_for_the_norm_are_taken_for_a_machines_own(original, self):
    """The group has written its sums over what the machine computed."""
    self._held.clear()
    original(self)
