"""Tables that stay where the machine computes: the engine counts clocks, the application's replica has the values.

A shard of such a job holds no block of these tables while a view is in force. It asks the replica for copies when a
cut is taken or a copy is sent; then no step is under way, because the server takes the steps itself, between two
clocks. The replica may go on copying while the next clock is computed; what is copied leaves the machine when it is
whole. A shard that a change installs lies on the host, beside the shard that is frozen, until the view is in force: a
change that fails must leave the replica as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from agileml.application import Array, Replica
from agileml.core.node.shard.resident_blocks import ResidentBlocks
from agileml.core.node.shard.shard import Shard
from agileml.core.parameters.layout import Layout
from agileml.core.parameters.whole_updates import resident_updates


class ResidentTables:
    """Stands between the shards of all partitions and the replica."""

    def __init__(self, replica: Replica, layout: Layout) -> None:
        self._replica = replica
        self._layout = layout

    def take(self, shards: Mapping[int, Shard]) -> None:
        """Give the replica the blocks that its shards were installed with, unless it has them: a view is in force."""
        if not shards or all(shard.resident is not None for shard in shards.values()):
            return
        tables = self._layout.tables
        blocks = {
            index: np.concatenate([shards[p].block_now(index) for p in range(self._layout.partitions)])
            for index, table in enumerate(tables)
            if table.resident
        }
        self._replica.place({tables[index].name: whole for index, whole in blocks.items()})
        for partition, shard in shards.items():
            shard.leave_to(ResidentBlocks(self._replica, self._layout, partition))

    def step(self, clock: int, sums: Sequence[Sequence[Array]]) -> None:
        """Take the step of a clock along the summed updates. sums: by partition, then by table."""
        self._replica.step(clock, resident_updates(self._layout, sums))
