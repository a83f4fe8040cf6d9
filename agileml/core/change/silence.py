"""How long to wait for machines that do not answer, where nobody else has what the run needs.

A machine that is only silent may come back with what it holds, so going back to a checkpoint at once would throw work
away. One that never does must not stop the run for ever: after `limit_s` of silence it is counted on no longer. It is
not taken for dead: should it speak again it joins again empty, as any machine that was left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from agileml.core.change.membership import Membership
from agileml.core.protocol.view import View


def awaited(members: Membership, view: View | None, waiting_since_s: float, limit_s: float) -> Sequence[str]:
    """The silent machines that may still bring back what is missing.

    Members of the view that this controller never heard of (it is new) count as silent since the wait began. Silence is
    judged as of the last look at everybody's heartbeats: a controller that slept gives them a fresh deadline then.
    """
    silent = [
        member.name
        for member in members.nodes.values()
        if member.is_silent
        and not (member.is_gone or member.is_released)
        and members.checked_s - member.heard_s < limit_s
    ]
    if members.checked_s - max(waiting_since_s, members.awake_since_s) < limit_s:
        silent += [node for node in (view.members if view else ()) if node not in members.nodes]
    return silent
