"""How the contributions of a clock come together, and who holds the parameters then.

SERVERS: workers push to the owners of the partitions, which add up and apply; whoever computes pulls.
ALLREDUCE: the workers of a view add up among themselves and apply the sum each to a replica of all partitions; owners
are those of the replicas that stream cuts to the backups and that others copy from first.
"""

from __future__ import annotations

from enum import Enum

from agileml.core.protocol.view import View


class Exchange(Enum):
    """See above."""

    SERVERS = "servers"
    ALLREDUCE = "allreduce"

    def held(self, view: View, node: str) -> list[int]:
        """The partitions of which a node has a live copy under a view."""
        if self is Exchange.ALLREDUCE:
            return list(range(len(view.owner))) if node in view.group else []
        return view.partitions_of(node)
