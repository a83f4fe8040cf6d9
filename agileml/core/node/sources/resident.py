"""Tables that stay where the machine computes: the engine counts clocks, the application's replica has the values.

A shard of such a job holds no block of these tables while a view is in force. It asks the replica for copies when a
cut is taken or a copy is sent; then no step is under way, because the server takes the steps itself, between two
clocks. The replica may go on copying while the next clock is computed; what is copied leaves the machine when it is
whole. A shard that a change installs lies on the host, beside the shard that is frozen, until the view is in force: a
change that fails must leave the replica as it is.

Where machines share the optimizer's state out, a replica steps the partitions that its machine owns, and takes the new
values of the others when they come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from agileml.application import Array, DeviceVector, Parts, Ranges, Replica
from agileml.core.node.shard.resident_blocks import ResidentBlocks, is_held_by_owner
from agileml.core.node.shard.shard import Shard
from agileml.core.parameters.layout import Layout
from agileml.core.parameters.whole_updates import resident_updates


class ResidentTables:
    """Stands between the shards of all partitions and the replica."""

    def __init__(self, replica: Replica, layout: Layout) -> None:
        self._replica = replica
        self._layout = layout
        self._own: frozenset[int] | None = None  # the partitions that are stepped here; None: all
        self._updates: Mapping[str, Array | DeviceVector] = {}  # of the step that lacks the others' values

    def take(self, shards: Mapping[int, Shard], own: Collection[int] | None) -> None:
        """Give the replica the blocks that its shards were installed with: a view is in force.

        own: the partitions that this machine steps, where machines share the optimizer's state out; None: all.
        """
        shares = None if own is None else frozenset(own)
        is_there = all(shard.resident is not None for shard in shards.values())
        if not shards or (is_there and shares == self._own):
            return
        self._replica.place(self._values(shards, shares), None if shares is None else self._steps(shares))
        self._own, self._updates = shares, {}
        for partition, shard in shards.items():
            owns = shares is None or partition in shares
            shard.leave_to(ResidentBlocks(self._replica, self._layout, partition, is_owner=owns))

    def _values(self, shards: Mapping[int, Shard], own: frozenset[int] | None) -> dict[str, Parts]:
        """The values of each table that the replica lacks, and all those that only owners hold."""
        found: dict[str, Parts] = {}
        for index, table in enumerate(self._layout.tables):
            if table.resident:
                found[table.name] = [
                    (self._layout.range_of(index, p)[0], shard.block_now(index))
                    for p, shard in sorted(shards.items())
                    if (shard.resident is None or not table.update.is_by_units)
                    and (own is None or p in own or not is_held_by_owner(table))
                ]
        return found

    def _steps(self, own: frozenset[int]) -> dict[str, Ranges]:
        return {
            table.name: [self._layout.range_of(index, p) for p in sorted(own)]
            for index, table in enumerate(self._layout.tables)
            if table.resident and table.update.is_by_units
        }

    def step(self, clock: int, sums: Sequence[Sequence[Array | DeviceVector]]) -> None:
        """Take the step of a clock along the summed updates, of the partitions that are stepped here. sums: by
        partition, then by table."""
        updates = resident_updates(self._layout, sums)
        self._replica.step(clock, updates)
        if self._own is not None:
            self._updates = updates

    def stepped(self) -> list[tuple[int, tuple[Array | DeviceVector, ...]]]:
        """By partition, the arrays in which its owner has the new values and the others take them."""
        found = []
        for partition in range(self._layout.partitions):
            blocks = [
                self._updates[table.name][slice(*self._layout.range_of(index, partition))]
                for index, table in enumerate(self._layout.tables)
                if table.name in self._updates
            ]
            found.append((partition, tuple(block for block in blocks if block.size)))
        return found

    def complete(self) -> None:
        """Take the values that the other machines have stepped: they are in the arrays of `stepped`."""
        self._replica.complete(self._updates)
        self._updates = {}
