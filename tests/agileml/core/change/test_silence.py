"""A silent machine that alone has what the run needs is waited for, but not for ever."""

from __future__ import annotations

from agileml.core.change.membership import Membership
from agileml.core.change.silence import awaited
from agileml.core.protocol.inputs import NodeDown, NodeUp
from agileml.core.stage.placement import StageRule
from agileml.events.run import GaveUpWaiting, WaitingForSilent
from agileml.events.terms import Loss, Tier
from tests.agileml.core.fixtures import scripts as scripts

IN_STAGE_1 = {"rule": StageRule(forced=1), "silent_limit_s": 10.0}


def test_everyone_goes_back_when_the_limit_is_over_and_the_machine_may_come_again(scripts):
    script = scripts(**IN_STAGE_1)
    script.up("r0", "r1", "t1")
    assert set(script.view.owner) == {"r0", "r1"}
    script.commit_cut()
    script.freeze("r1")
    script.wait(9.5)
    (waiting,) = script.events_of(WaitingForSilent)
    assert waiting.machines == ("r1",)
    assert waiting.limit_s == 10.0
    assert "r1" in script.view.members
    assert not script.events_of(GaveUpWaiting)
    script.wait(3.0)
    (gave_up,) = script.events_of(GaveUpWaiting)
    assert 8.0 < gave_up.waited_s < 10.0  # it was silent for a second when the waiting began
    assert script.view.members == ("r0", "t1")
    assert script.views[-1].rolled_back
    assert "back to the start" in script.reason
    assert not script.halts
    script.wake("r1")
    script.wait(2.0)
    assert "r1" in script.view.members
    assert not script.views[-1].rolled_back


def test_the_run_ends_when_no_reliable_machine_comes_back_in_time(scripts):
    script = scripts(**IN_STAGE_1)
    script.up("r0", "t1")
    script.commit_cut()
    script.freeze("r0")
    script.wait(9.5)
    assert not script.halts
    script.wait(2.0)
    (halt,) = script.halts
    assert halt.reason == "no reliable machine is left, and none came back in 9 s"


def test_the_end_says_how_long_it_waited_for_a_machine_that_then_turned_out_to_be_gone(scripts):
    script = scripts(**IN_STAGE_1)
    script.up("r0", "t1")
    script.commit_cut()
    script.freeze("r0")
    script.wait(4.0)
    script.tell(NodeDown("r0", Loss.NODE_GONE))
    (halt,) = script.halts
    assert halt.reason == "no reliable machine is left, and none came back in 3 s"


def test_a_machine_that_comes_back_in_time_has_lost_nothing(scripts):
    script = scripts(**IN_STAGE_1)
    script.up("r0", "r1", "t1")
    cut = script.commit_cut()
    for _ in range(3):  # each silence counts for itself
        script.freeze("r1")
        script.wait(8.0)
        script.wake("r1")
        script.wait(2.0)
    assert script.view.base >= cut
    assert not any(view.rolled_back for view in script.views)


def test_a_new_controller_waits_for_members_that_it_never_heard(scripts):
    script = scripts(**IN_STAGE_1, restart_wait_s=2.0)
    script.up("r0", "r1", "t1")
    script.commit_cut()
    script.freeze("r1")
    script.restart()
    script.wait(8.0)
    assert script.events_of(WaitingForSilent)
    assert "r1" in script.view.members
    script.wait(6.0)
    assert "r1" not in script.view.members


def test_only_silent_machines_that_may_come_back_are_awaited():
    members = Membership(timeout_s=1.0)
    for name in ("alive", "silent", "gone", "released", "long"):
        members.up(NodeUp(name, Tier.RELIABLE, True), 100.0)
    for name in ("silent", "gone", "released", "long"):
        members.nodes[name].is_silent = True
    members.nodes["gone"].is_gone = True
    members.nodes["released"].is_released = True
    members.nodes["long"].last_message_s = 80.0
    members.checked_s = 105.0
    assert awaited(members, None, 105.0, limit_s=20.0) == ["silent"]
    members.checked_s = 120.0
    assert awaited(members, None, 105.0, limit_s=20.0) == []


def test_a_controller_that_slept_blames_nobody(scripts):
    script = scripts(**IN_STAGE_1)
    script.up("r0", "r1", "t1")
    script.commit_cut()
    script.freeze("r1")
    script.wait(3.0)
    script.now_s += 60.0  # it was frozen itself: the first that it hears is a message, and only then the time
    script.heartbeats()
    script.wait(8.0)
    assert not script.events_of(GaveUpWaiting)
    assert "r1" in script.view.members
    script.wait(4.0)
    assert script.events_of(GaveUpWaiting)
