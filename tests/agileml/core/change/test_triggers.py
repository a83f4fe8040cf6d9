"""Why the arrangement changes: the most urgent reason first."""

from __future__ import annotations

from agileml.core.change.change_plan import plan_change
from agileml.core.change.membership import Membership
from agileml.core.change.triggers import slices_for, why_change, why_start
from agileml.core.protocol.inputs import NodeUp
from agileml.core.protocol.view import INITIAL
from agileml.core.stage.placement import StageRule
from agileml.events.terms import Cause, Tier, Trigger
from straggler.coverage import union
from tests.agileml.core.fixtures import make_job

RULE = StageRule()


def make(*names):
    members = Membership(timeout_s=1.0)
    for name in names:
        tier = Tier.RELIABLE if name[0] == "r" else Tier.TRANSIENT
        members.up(NodeUp(name, tier, True), 0.0)
        members.nodes[name].ready_since_s = 0.0
    return members


def view_of(members):
    return plan_change(make_job(), RULE, 1, None, INITIAL, {}, members.machines(frozenset())).view


def why(members, view, now_s=5.0, rule=RULE):
    return why_change(view, members, rule, now_s, 1.0, 0)


def test_the_start_waits_for_everyone_and_for_a_reliable_machine():
    members = make("r", "t")
    assert why_start(members, 2) == Trigger(Cause.START)
    assert why_start(members, 3) is None
    members.nodes["t"].ready_since_s = None
    assert why_start(members, 2) is None
    assert why_start(make("t", "u"), 2) is None


def test_nothing_to_do():
    members = make("r", "t")
    assert why(members, view_of(members)) is None


def test_a_failure_comes_before_a_notice_and_a_notice_before_a_join():
    members = make("r", "t", "u", "v")
    view = view_of(members)
    members.up(NodeUp("w", Tier.TRANSIENT, True), 0.0)
    members.nodes["w"].ready_since_s = 0.0
    assert why(members, view) == Trigger(Cause.JOIN, ("w",))
    members.nodes["u"].deadline_s = 60.0
    assert why(members, view) == Trigger(Cause.NOTICE, ("u",))
    members.nodes["t"].is_silent = True
    assert why(members, view) == Trigger(Cause.FAILURE, ("t",))


def test_a_stage_that_the_rule_wants_is_a_reason():
    members = make("r", "t", "u")
    view = view_of(members)
    assert view.stage == 2
    found = why(members, view, rule=StageRule(thresholds=(5.0, 15.0)))
    assert found == Trigger(Cause.STAGE, why="stage 1: 2 transient to 1 reliable is at most 5:1")


def test_the_last_reliable_machine_under_notice_is_no_reason():
    members = make("r", "t")
    view = view_of(members)
    members.nodes["r"].deadline_s = 60.0
    assert why(members, view) is None


def test_a_transient_machine_leaves_though_the_last_reliable_one_is_under_notice_too():
    members = make("r", "t", "u")
    view = view_of(members)
    members.nodes["r"].deadline_s = members.nodes["t"].deadline_s = 60.0
    assert why(members, view) == Trigger(Cause.NOTICE, ("t",))


def test_machines_that_come_together_join_together_unless_one_is_late():
    members = make("r")
    view = view_of(members)
    for name in ("t", "u"):
        members.up(NodeUp(name, Tier.TRANSIENT, True), 5.0)
    members.nodes["t"].ready_since_s = 5.0
    assert why(members, view, now_s=5.5) is None
    assert why(members, view, now_s=6.0) == Trigger(Cause.JOIN, ("t",))
    members.nodes["u"].ready_since_s = 5.6
    assert why(members, view, now_s=5.7) == Trigger(Cause.JOIN, ("t", "u"))


def test_what_machines_load_ahead_covers_everything_once_all_are_in():
    members = make("r", "t", "u")
    loads = [slices_for(member, members, RULE, 8) for member in members.nodes.values()]
    assert union(loads) == 0xFF
    assert sum(load.bit_count() for load in loads) == 8


def test_slices_are_dealt_once_for_machines_that_report_again_and_again():
    dealt = []

    class Counted(StageRule):
        def stage(self, reliable, transient):
            dealt.append(transient)
            return super().stage(reliable, transient)

    members, rule = make("r", "t", "u"), Counted()
    first = [slices_for(member, members, rule, 8) for member in members.nodes.values()]
    for _ in range(20):
        assert [slices_for(member, members, rule, 8) for member in members.nodes.values()] == first
    assert dealt == [2]
    members.up(NodeUp("v", Tier.TRANSIENT, True), 0.0)
    loads = [slices_for(member, members, rule, 8) for member in members.nodes.values()]
    assert union(loads) == 0xFF and [load.bit_count() for load in loads] == [2, 2, 2, 2]
    for name in ("w", "x"):  # each of them waits for a word that it may join, and is dealt for apart
        members.up(NodeUp(name, Tier.TRANSIENT, False), 0.0)
    for _ in range(20):
        assert [slices_for(members.nodes[name], members, rule, 8).bit_count() for name in "wx"] == [1, 1]
    assert dealt == [2, 3, 4, 4]
