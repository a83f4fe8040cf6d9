"""How long to wait for silent machines that hold the only copy of a partition.

A silent machine may come back with its state, so an immediate return to a checkpoint could waste work. After `limit_s`
seconds of silence the run goes on without the machine, which rejoins empty if it returns.
"""

from __future__ import annotations

from collections.abc import Sequence

from agileml.core.change.membership import Membership
from agileml.core.protocol.view import View


def awaited(members: Membership, view: View | None, waiting_since_s: float, limit_s: float) -> Sequence[str]:
    """The silent machines that are still worth waiting for.

    Members that a new controller never heard from count as silent since the wait began. Silence counts up to the last
    check of the heartbeats, because a controller that slept then gives all machines a fresh deadline.
    """
    silent = [
        member.name
        for member in members.nodes.values()
        if (member.is_silent or member.is_apart)
        and not (member.is_gone or member.is_released)
        and members.checked_s - member.away_since_s < limit_s
    ]
    if members.checked_s - max(waiting_since_s, members.awake_since_s) < limit_s:
        silent += [node for node in (view.members if view else ()) if node not in members.nodes]
    return silent
