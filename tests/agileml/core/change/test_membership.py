"""Who is alive, who may hold things, who slept."""

from __future__ import annotations

from agileml.core.change.membership import Membership
from agileml.events.terms import Tier


def make(*names, at_s=10.0):
    members = Membership(timeout_s=1.0)
    members.check(at_s)
    for name in names:
        tier = Tier.RELIABLE if name[0] == "r" else Tier.TRANSIENT
        members.up(name, tier, "", True, at_s)
        members.nodes[name].ready_since_s = at_s
    return members


def checked(members, *times_s):
    return [member.name for at_s in times_s for member in members.check(at_s)]


def test_a_machine_is_silent_once_after_the_timeout_and_back_when_it_is_heard():
    members = make("r", "t")
    members.heard("r", 10.9)
    assert checked(members, 10.3, 10.6, 10.9) == []
    assert checked(members, 11.1) == ["t"]
    members.heard("r", 11.2)
    assert checked(members, 11.3) == []
    assert not members.is_alive("t")
    members.heard("t", 11.4)
    assert members.is_alive("t")


def test_whoever_slept_gives_everyone_a_fresh_deadline_first():
    members = make("r", "t")
    assert checked(members, 40.0) == []
    assert members.is_alive("r") and members.is_alive("t")
    assert checked(members, 40.3, 40.6, 40.9, 41.2) == ["r", "t"]


def test_a_machine_that_is_gone_or_released_is_never_heard_again():
    members = make("r", "t")
    members.nodes["t"].is_gone = True
    members.nodes["r"].is_released = True
    assert members.heard("t", 10.1) is None
    assert members.heard("r", 10.1) is None
    assert members.heard("unknown", 10.1) is None
    assert members.alive() == []


def test_who_may_hold_things():
    members = make("r", "t1", "t2", "t3", "t4")
    members.nodes["t1"].deadline_s = 99.0
    members.nodes["t2"].ready_since_s = None
    members.nodes["t3"].admitted = False
    assert members.machines(frozenset()).transient == ("t4",)
    assert members.machines(frozenset({"t2", "t1"})).transient == ("t2", "t4")
    assert members.expected().transient == ("t2", "t4")
    assert members.with_machine(members.nodes["t3"]).transient == ("t2", "t3", "t4")
    assert members.waiting()[Tier.TRANSIENT] == ["t3"]


def test_being_told_twice_changes_nothing():
    members = make("t")
    members.nodes["t"].deadline_s = 50.0
    members.up("t", Tier.RELIABLE, "other", False, 12.0)
    assert members.nodes["t"].deadline_s == 50.0
    assert members.nodes["t"].tier is Tier.TRANSIENT
