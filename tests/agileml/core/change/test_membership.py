"""Who is alive, who may hold things, who slept."""

from __future__ import annotations

from agileml.core.change.membership import Membership
from agileml.core.protocol.inputs import Measured, NodeUp
from agileml.events.terms import Tier


def make(*names, at_s=10.0):
    members = Membership(timeout_s=1.0)
    members.check(at_s)
    for name in names:
        tier = Tier.RELIABLE if name[0] == "r" else Tier.TRANSIENT
        members.up(NodeUp(name, tier, True), at_s)
        members.nodes[name].ready_since_s = at_s
    return members


def checked(members, *times_s):
    return [member.name for at_s in times_s for member in members.check(at_s)]


def test_a_machine_is_silent_once_after_the_timeout_and_back_when_it_is_heard():
    members = make("r", "t")
    members.record_message("r", 10.9)
    assert checked(members, 10.3, 10.6, 10.9) == []
    assert checked(members, 11.1) == ["t"]
    members.record_message("r", 11.2)
    assert checked(members, 11.3) == []
    assert not members.is_alive("t")
    members.record_message("t", 11.4)
    assert members.is_alive("t")


def test_whoever_slept_gives_everyone_a_fresh_deadline_first():
    members = make("r", "t")
    assert checked(members, 40.0) == []
    assert members.is_alive("r") and members.is_alive("t")
    assert checked(members, 40.3, 40.6, 40.9, 41.2) == ["r", "t"]


def test_whoever_slept_believes_no_loss_until_it_has_been_awake_for_a_while():
    members = make("r", "t")
    checked(members, 10.3, 10.6)
    assert not members.lost("t", 14.0)  # the heartbeats of a frozen process are overdue when it wakes
    assert checked(members, 14.0) == []
    assert not members.lost("t", 14.2)
    assert members.is_alive("t")
    assert checked(members, 14.3) == []
    assert members.lost("t", 14.4)
    assert not members.lost("t", 14.4)
    assert not members.is_alive("t")


def test_a_loss_that_was_not_believed_is_found_soon_unless_the_machine_is_heard_of():
    members = make("r", "s", "t")
    assert not members.lost("t", 14.0)
    assert not members.lost("s", 14.0)
    assert checked(members, 14.0, 14.2) == []
    members.seen("s", 14.2)  # it has connected again
    assert checked(members, 14.3) == []
    assert checked(members, 14.4) == ["t"]
    assert members.nodes["t"].is_doubted and not members.nodes["s"].is_doubted
    assert checked(members, 14.7, 15.0) == []
    assert checked(members, 15.1) == ["r"]
    assert checked(members, 15.3) == ["s"]


def test_messages_of_a_machine_that_cannot_be_reached_are_no_sign_of_life():
    members = make("r", "t")
    checked(members, 10.3, 10.6)
    assert members.lost("t", 10.7)
    assert members.record_message("t", 10.8) is members.nodes["t"]
    assert not members.is_alive("t")
    members.seen("t", 10.9)
    assert members.is_alive("t")
    members.record_message("t", 11.0)
    assert members.is_alive("t")


def test_a_machine_that_speaks_after_a_loss_that_was_not_believed_has_the_whole_timeout_to_be_reached():
    members = make("r", "t")
    assert not members.lost("t", 14.0)
    assert checked(members, 14.0) == []
    members.record_message("t", 14.1)
    for at_s in (14.2, 14.4, 14.6, 14.8, 15.0):
        members.record_message("r", at_s)
        members.record_message("t", at_s)
        assert checked(members, at_s) == []
    members.record_message("r", 15.1)
    assert checked(members, 15.1) == ["t"]


def test_a_machine_that_is_gone_or_released_is_never_heard_again():
    members = make("r", "t")
    members.nodes["t"].is_gone = True
    members.nodes["r"].is_released = True
    assert members.record_message("t", 10.1) is None
    assert members.record_message("r", 10.1) is None
    assert members.record_message("unknown", 10.1) is None
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
    members.up(NodeUp("t", Tier.RELIABLE, False), 12.0)
    assert members.nodes["t"].deadline_s == 50.0
    assert members.nodes["t"].tier is Tier.TRANSIENT


def test_machines_weigh_as_much_as_their_cores_until_their_speed_is_known_and_asked_for():
    members = Membership(1.0)
    for name, cores in (("a", 4.0), ("b", 8.0), ("c", 8.0)):
        members.up(NodeUp(name, Tier.RELIABLE, True, cores), 0.0)
    machines = members.expected()
    by_cores = {"a": 4.0, "b": 8.0, "c": 8.0}
    assert members.weighted(machines, by_speed=True).weights == by_cores
    for at_s, units in ((1.0, 100), (2.0, 200), (3.0, 300)):
        members.nodes["a"].measure(reported("a", at_s, units))
        members.nodes["b"].measure(reported("b", at_s, units))
    assert members.weighted(machines, by_speed=False).weights == by_cores
    assert members.weighted(machines, by_speed=True).weights == {"a": 100.0, "b": 100.0, "c": 150.0}


def test_the_speed_of_a_stage_counts_by_its_layers_and_one_that_stood_by_is_as_the_mean():
    members = Membership(1.0)
    for name, rate, cost in (("a", 100, 1.0), ("b", 50, 4.0), ("c", 100, None)):
        members.up(NodeUp(name, Tier.RELIABLE, True, 8.0 if name == "a" else 2.0), 0.0)
        for at_s in (1, 2):
            members.nodes[name].measure(reported(name, at_s, rate * at_s), cost)
    machines = members.expected()
    found = members.weighted(machines, by_speed=True, by_capacity=False)
    assert found.weights == {"a": 100.0, "b": 200.0, "c": 150.0}
    assert members.weighted(machines, by_speed=True, by_capacity=False, alike=2.5).weights["b"] == 1.0
    assert members.weighted(machines, by_speed=False, by_capacity=False).weights["a"] == 1.0


def test_units_of_two_stages_in_one_report_say_nothing_of_a_machines_speed():
    members = Membership(1.0)
    members.up(NodeUp("a", Tier.RELIABLE, True), 0.0)
    member = members.nodes["a"]
    for at_s, units, cost, speed in (
        (1, 100, 1.0, None),
        (2, 200, 1.0, 100.0),
        (3, 600, 0.5, 100.0),  # some of the older stage, some of this one
        (4, 800, 0.5, 100.0),
        (5, 900, 0.5, 75.0),
    ):
        member.measure(reported("a", at_s, units), cost)
        assert member.speed == speed


def reported(name: str, at_s: float, units: int) -> Measured:
    """The totals of a machine that does nothing but compute."""
    return Measured(name, at_s, 0, 0, 0, at_s, 0.0, units=units, units_s=at_s)


def test_a_machine_that_waits_is_admitted_for_another_one():
    members = Membership(1.0)
    members.up(NodeUp("a", Tier.RELIABLE, True), 0.0)
    members.up(NodeUp("b", Tier.TRANSIENT, False), 0.0)
    members.admit("b", 2.5)
    members.admit("b")
    machines = members.expected()
    assert machines.transient == ("b",)
    assert members.weighted(machines, by_speed=True).weights == {"a": 1.0, "b": 2.5}


def test_a_machines_speed_follows_its_latest_reports_and_idle_ones_say_nothing():
    members = Membership(1.0)
    members.up(NodeUp("a", Tier.RELIABLE, True), 0.0)
    member = members.nodes["a"]
    for compute_s, units in ((0.0, 0), (1.0, 100), (1.0, 100), (2.0, 150)):
        member.measure(reported("a", compute_s, units))
    assert member.speed == 75.0
