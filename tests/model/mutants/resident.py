"""The engine counts clocks that a replica does not have, or writes down other values than it has."""

from __future__ import annotations

from agileml.core.node.shard.resident_blocks import ResidentBlocks
from agileml.core.node.shard.shard import Shard
from agileml.core.node.sources.resident import ResidentTables
from tests.model.mutants.mutant import replaces


@replaces(ResidentTables.take, mode="allreduce-resident", caught_by=5)
def a_machine_that_is_behind_keeps_its_replica(original, self, shards, own):
    """What it copied from a peer never reaches the replica."""
    if not self._replica.values:  # the first view
        original(self, shards, own)
        return
    for partition, shard in shards.items():
        shard.leave_to(ResidentBlocks(self._replica, self._layout, partition, is_owner=True))


@replaces(Shard._blocks_apart, mode="allreduce-resident", caught_by=0)
def a_cut_has_what_the_last_one_had(original, self):
    """The values are read once, not at the version of the cut."""
    if self.resident is None:
        return original(self)
    return self.__dict__.setdefault("first_read", original(self))


@replaces(ResidentBlocks.is_copied, mode="allreduce-resident", caught_by=0)
def a_cut_leaves_before_it_is_copied(original, self, *, waits):
    """What a backup gets is whatever the memory held."""
    return True
