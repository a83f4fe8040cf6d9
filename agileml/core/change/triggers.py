"""Why the membership must change: the differences between the durable view and the machines that exist."""

from __future__ import annotations

from collections.abc import Sequence

from agileml.core.change.membership import Member, Membership
from agileml.core.protocol.view import NOBODY, View
from agileml.core.stage.placement import StageRule, place
from agileml.events.terms import Cause, Tier, Trigger
from straggler.coverage import Units


def why_start(members: Membership, expected: int) -> Trigger | None:
    """The trigger of the first view: all expected machines have appeared, and those still alive are ready."""
    machines = members.machines(frozenset())
    is_ready = machines == members.expected() and bool(machines.reliable)
    return Trigger(Cause.START) if is_ready and len(members.nodes) >= expected else None


def why_change(
    view: View, members: Membership, rule: StageRule, now_s: float, join_wait_s: float, completed: int
) -> Trigger | None:
    """The trigger of another view, the most urgent first: failure, notice, join, stage.

    A leaver that is only finishing its part of an open clock stays until that clock is `completed`.
    """
    dead = [node for node in view.members if not members.is_alive(node)]
    if dead:
        return Trigger(Cause.FAILURE, tuple(dead))
    going = [node for node in view.members if not members.may_hold(members.nodes[node])]
    gone = frozenset(going)
    stays = [node for node in view.members if node not in gone]
    leaving = [node for node in going if node in view.holders or view.last_open(node) < completed]
    reliable = sum(members.nodes[node].tier is Tier.RELIABLE for node in stays)
    if not reliable:  # the last reliable machines stay until there is another
        leaving = [node for node in leaving if members.nodes[node].tier is Tier.TRANSIENT]
    if leaving:
        return Trigger(Cause.NOTICE, tuple(leaving))
    machines = members.machines(view.member_set)
    joining = [node for node in machines.reliable + machines.transient if node not in view.member_set]
    if joining and _may_join(view, members, joining, now_s, join_wait_s):
        return Trigger(Cause.JOIN, tuple(joining))
    if reliable:
        stage, why = rule.stage(reliable, len(stays) - reliable)
        if stage != view.stage:
            return Trigger(Cause.STAGE, why=f"stage {stage}: {why}")
    return None


def _may_join(
    view: View, members: Membership, joining: Sequence[str], now_s: float, join_wait_s: float
) -> bool:
    """True when all expected machines are ready, or the first of them has waited `join_wait_s` for the others."""
    expected = members.expected()
    known = {*view.members, *joining}
    if all(node in known for node in expected.reliable + expected.transient):
        return True
    since_s = min(members.nodes[node].ready_since_s or 0.0 for node in joining)
    return now_s - since_s >= join_wait_s


def slices_for(member: Member, members: Membership, rule: StageRule, slices: int) -> Units:
    """The set of slices that a machine would compute if all expected machines were members."""
    machines = members.with_machine(member)
    if not machines.reliable:
        return 0
    nobody, one = (NOBODY,) * slices, (NOBODY,)
    worker = place(machines, rule, one, one, nobody, nobody).worker
    return sum(1 << index for index, node in enumerate(worker) if node == member.name)
