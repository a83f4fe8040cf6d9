"""The controller as short scripts: machines that cannot be reached, or that never answer while they load."""

from __future__ import annotations

import pytest

from agileml.core.protocol.inputs import NodeDown, NodeLost, NodeSeen, NodeUp, Received, Tick
from agileml.core.protocol.messages import Prepare, Status, Unreachable
from agileml.core.stage.placement import StageRule
from agileml.events.run import MachineLost
from agileml.events.terms import Loss, Tier
from tests.agileml.core.fixtures import Machine
from tests.agileml.core.fixtures import scripts as scripts

ACTIVE = {"rule": StageRule(thresholds=(0.5, 15.0), active_fraction=1.0)}


def come_mute(script, name):
    """A machine comes that answers nothing: its user code does not give the interpreter up."""
    tier = Tier.RELIABLE if name[0] == "r" else Tier.TRANSIENT
    script.machines[name] = Machine(name, tier, is_frozen=True)
    script.tell(NodeUp(name, tier, admitted=True))


def wait(script, seconds, *, seen=(), heard=()):
    """Time passes. `seen`: machines whose transport answers; `heard`: mute ones whose status arrives all the same."""
    end_s = script.now_s + seconds
    while script.now_s < end_s:
        script.now_s += 0.2
        for name in seen:
            script.tell(NodeSeen(name))
        for name in heard:
            script.tell(Received(name, Status(0, (), 0, (), False)))
        script.heartbeats()
        script.tell(Tick())


def test_a_change_does_not_wait_for_a_machine_that_is_loading(scripts):
    script = scripts()
    script.up("r0", "t1", "t2")
    script.reach(4)
    come_mute(script, "t3")
    wait(script, 2.0, seen=["t3"])
    script.freeze("t2")
    script.tell(NodeDown("t2", Loss.DISCONNECTED))
    assert not script.controller.is_changing
    assert script.view.members == ("r0", "t1")
    assert script.told("t3", Prepare), "it is asked, so that it can join soon"


def test_a_machine_that_has_loaded_its_items_joins_after_a_change_that_did_not_wait_for_it(scripts):
    script = scripts()
    script.up("r0", "t1", "t2")
    come_mute(script, "t3")
    script.tell(NodeDown("t2", Loss.DISCONNECTED))
    script.wake("t3")
    wait(script, 3.0)
    assert script.view.members == ("r0", "t1", "t3")


def test_a_change_waits_for_a_member_however_long_it_does_not_answer(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    script.reach(4)
    script.freeze("t1")
    script.tell(NodeDown("t2", Loss.DISCONNECTED))
    wait(script, 30.0, seen=["t1"])
    assert script.controller.is_changing
    script.wake("t1")
    wait(script, 1.0)
    assert not script.controller.is_changing
    assert script.view.members == ("r0", "t1")


def test_a_change_waits_for_a_machine_that_was_a_member_once(scripts):
    """It was silent for a while, and may have what no member has any more."""
    script = scripts()
    script.up("r0", "t1", "t2", "t3")
    script.freeze("t1")
    wait(script, 2.0)
    assert "t1" not in script.view.members
    script.tell(NodeSeen("t1"))
    script.tell(NodeDown("t2", Loss.DISCONNECTED))
    assert script.controller.is_changing
    script.wake("t1")
    wait(script, 1.0)
    assert not script.controller.is_changing


def test_a_change_waits_for_reliable_machines_that_are_loading_where_there_is_no_other(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1")
    script.commit_cut()
    come_mute(script, "r1")
    script.freeze("r0")
    script.tell(NodeDown("r0", Loss.DISCONNECTED))
    wait(script, 5.0, seen=["r1"])
    assert script.controller.is_changing and not script.halts
    script.wake("r1")
    wait(script, 2.0)
    assert set(script.view.backup) == {"r1"}


@pytest.mark.parametrize("name", ["t1", "t3"])
def test_a_machine_that_the_head_cannot_reach_is_lost_though_its_messages_arrive(scripts, name):
    """t1 is a member, t3 is not yet: the transport drops what is sent to it, so it could never promise."""
    script = scripts()
    script.up("r0", "t1", "t2")
    script.reach(4)
    if name == "t3":
        come_mute(script, "t3")
    script.freeze(name)
    wait(script, 1.0, heard=[name])
    script.tell(NodeLost(name, Loss.UNREACHABLE))
    wait(script, 20.0, heard=[name])
    assert [lost.machine for lost in script.events_of(MachineLost)] == [name]
    script.tell(NodeDown("t2", Loss.DISCONNECTED))
    wait(script, 0.4, heard=[name])
    assert not script.controller.is_changing
    assert script.view.members == (("r0",) if name == "t1" else ("r0", "t1"))


def test_a_machine_that_the_head_reaches_again_comes_back(scripts):
    script = scripts()
    script.up("r0", "t1", "t2")
    script.tell(NodeLost("t1", Loss.DISCONNECTED))
    wait(script, 3.0)  # its status arrives all the time
    assert script.workers == {"r0", "t2"}
    script.tell(NodeSeen("t1"))
    wait(script, 3.0)
    assert script.workers == {"r0", "t1", "t2"}


def accuse(script, seconds, said):
    """Time passes, and machines say with each heartbeat whom they do not reach."""
    end_s = script.now_s + seconds
    while script.now_s < end_s:
        script.now_s += 0.2
        script.heartbeats()
        for name, names in said.items():
            script.tell(Received(name, Unreachable(names)))
        script.tell(Tick())


def lost_links(script):
    return [
        (lost.machine, lost.detail) for lost in script.events_of(MachineLost) if lost.loss is Loss.CUT_OFF
    ]


def test_of_two_machines_that_do_not_reach_each_other_one_is_given_up_and_comes_back(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    cut = script.commit_cut()
    script.reach(cut + 2)
    said = {"t1": ("t2",), "t2": ("t1",)}
    accuse(script, 5.0, said)
    assert script.workers == {"r0", "t1", "t2"}
    accuse(script, 3.0, said)
    assert script.workers == {"r0", "t1"}
    why = "t1 and t2 have not reached each other for 6 s, and t2 is given up: it is the younger one"
    assert lost_links(script) == [("t2", why)]
    accuse(script, 60.0, said)
    assert script.workers == {"r0", "t1"} and len(lost_links(script)) == 1
    wait(script, 12.0)
    assert script.workers == {"r0", "t1", "t2"}


def test_an_install_over_a_link_that_is_down_ends_with_its_machine(scripts):
    """t3 joins, and cannot fetch what it is to own."""
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    script.reach(3)
    script.up("t3")
    script.tell(NodeDown("t2", Loss.DISCONNECTED))
    script.freeze("t3")  # no Installed comes from it; it speaks all the same
    wait(script, 3.0, seen=["t3"])
    script.tell(NodeDown("t1", Loss.DISCONNECTED))
    said = {"t3": ("r0",)}
    accuse(script, 4.0, said)
    assert script.controller.is_changing
    accuse(script, 5.0, said)
    assert not script.controller.is_changing and script.view.members == ("r0",)
    assert [machine for machine, _ in lost_links(script)] == ["t3"]


def test_workers_that_have_nothing_to_say_to_each_other_need_no_link(scripts):
    script = scripts(rule=StageRule(forced=1))
    script.up("r0", "t1", "t2")
    accuse(script, 30.0, {"t1": ("t2",), "t2": ("t1",)})
    assert script.workers == {"r0", "t1", "t2"} and not lost_links(script)


def test_a_reliable_machine_that_was_given_up_is_taken_back_when_the_other_one_dies(scripts):
    script = scripts(silent_limit_s=2.0, **ACTIVE)
    script.up("r0", "r1", "t1", "t2", "t3")
    script.commit_cut()
    said = {"r1": ("t1", "t2"), "t1": ("r1",), "t2": ("r1",)}
    accuse(script, 10.0, said)
    assert [machine for machine, _ in lost_links(script)] == ["r1"]
    script.tell(NodeDown("r0", Loss.DISCONNECTED))
    accuse(script, 2.0, said)
    assert not script.halts and "r1" in script.view.members
    accuse(script, 20.0, said)
    assert {machine for machine, _ in lost_links(script)} == {"r1", "t1", "t2"}
    assert script.view.members == ("r1", "t3")


def test_a_machine_that_is_accused_and_dead_takes_the_usual_way(scripts):
    script = scripts()
    script.up("r0", "t1", "t2")
    script.freeze("t2")
    accuse(script, 20.0, {"r0": ("t2",), "t1": ("t2",)})
    assert [lost.loss for lost in script.events_of(MachineLost)] == [Loss.SILENT]
