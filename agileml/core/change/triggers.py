"""Why the membership must change: the differences between the durable view and the machines that exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby

from agileml.core.change.membership import Member, Membership
from agileml.core.protocol.view import NOBODY, View
from agileml.core.stage.placement import Machines, StageRule, place
from agileml.events.terms import Cause, Tier, Trigger
from straggler.coverage import Units, span


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
    return _slices_of(member.name, machines.reliable, machines.transient, rule, slices)


# A machine that loads is asked about with each of its heartbeats, for minutes; dealing thousands of slices anew each
# time would leave the controller no time for anything else. Machines that wait are each dealt for apart.
@lru_cache(maxsize=1024)
def _slices_of(
    node: str, reliable: tuple[str, ...], transient: tuple[str, ...], rule: StageRule, slices: int
) -> Units:
    return _first_deal(reliable, transient, rule, slices).get(node, 0)


@lru_cache(maxsize=2)
def _first_deal(
    reliable: tuple[str, ...], transient: tuple[str, ...], rule: StageRule, slices: int
) -> Mapping[str, Units]:
    """The slices of each machine where nobody had any before."""
    nobody, one = (NOBODY,) * slices, (NOBODY,)
    worker = place(Machines(reliable, transient), rule, one, one, nobody, nobody).worker
    dealt: dict[str, Units] = {}
    start = 0
    for node, run in groupby(worker):
        stop = start + sum(1 for _ in run)
        dealt[node] = dealt.get(node, 0) | span(start, stop)
        start = stop
    return dealt
