"""Which of two machines that do not reach each other is given up, when, and when it comes back."""

from __future__ import annotations

from collections import Counter

import pytest

from agileml.core.change.broken_links import LEAST_S, LONGEST_S, BrokenLinks, choose
from agileml.core.change.membership import Membership
from agileml.core.protocol.inputs import NodeUp
from agileml.core.protocol.view import INITIAL, View
from agileml.events.terms import Tier


def make(*names):
    members = Membership(timeout_s=1.0)
    members.check(10.0)
    for name in names:
        tier = Tier.RELIABLE if name[0] == "r" else Tier.TRANSIENT
        members.up(NodeUp(name, tier, True), 10.0)
    return members, BrokenLinks(1.0)


def make_view(*members, owner=("r0",), backup=("r0",)):
    return View(1, 1, members, owner, backup, (), (), 0, (), 1, INITIAL)


def go_on(members, links, seconds, said, *, view=None, silent=(), from_s=10.0):
    """Time passes. `said`: whom each machine accuses, all the time. The first verdict and when it came, or None."""
    now_s, end_s = from_s, from_s + seconds
    while now_s < end_s:
        now_s += 0.2
        for name in members.nodes:
            if name not in silent:
                members.record_message(name, now_s)
                links.report(name, said.get(name, ()), now_s)
        members.check(now_s)
        if (found := links.judge(members, view, lambda pair: True, now_s)) is not None:
            return found, now_s
    return None


def test_one_of_two_machines_is_given_up_after_a_few_timeouts_and_the_reason_names_both():
    members, links = make("r0", "t1", "t2")
    found, at_s = go_on(members, links, 60.0, {"t1": ["t2"], "t2": ["t1"]})
    assert found.machine == "t2" and found.reason.startswith("t1 and t2 have not")
    assert found.reason == (
        "t1 and t2 have not reached each other for 6 s, and t2 is given up: it is the younger one"
    )
    assert LEAST_S <= at_s - 10.2 < LEAST_S + 0.5


def test_one_accuser_is_enough():
    members, links = make("r0", "t1", "t2")
    assert go_on(members, links, 60.0, {"t1": ["t2"]}) is not None


def test_a_machine_that_is_silent_is_not_judged_nor_is_its_silence_counted():
    """It froze, and the others' connections to it take a moment longer than the head's."""
    members, links = make("r0", "t1", "t2")
    said = {"r0": ["t2"], "t1": ["t2"]}
    assert go_on(members, links, 30.0, said, silent=["t2"]) is None
    assert go_on(members, links, LEAST_S - 1.0, said, from_s=40.0) is None
    assert go_on(members, links, 20.0, {}, from_s=46.0) is None


def test_accusations_that_end_count_nothing():
    members, links = make("r0", "t1", "t2")
    for start_s in (10.0, 20.0, 30.0):
        assert go_on(members, links, LEAST_S - 1.0, {"t1": ["t2"]}, from_s=start_s) is None
        assert go_on(members, links, 5.0, {}, from_s=start_s + 5.0) is None


def test_a_controller_that_slept_counts_anew():
    members, links = make("r0", "t1", "t2")
    said = {"t1": ["t2"], "t2": ["t1"]}
    assert go_on(members, links, 5.0, said) is None
    assert go_on(members, links, 5.0, said, from_s=30.0) is None
    assert go_on(members, links, 5.0, said, from_s=35.0) is not None


def test_a_machine_that_reaches_nobody_is_given_up_and_not_the_others():
    members, links = make("r0", "r1", "t1", "t2", "t3")
    said = {"t1": ["r0", "t2", "t3"], "r0": ["t1"]}
    found, at_s = go_on(members, links, 60.0, said)
    assert found.machine == "t1" and "more broken links speak against it" in found.reason
    members.keep_apart("t1", at_s)
    assert go_on(members, links, 60.0, said, from_s=at_s) is None


@pytest.mark.parametrize(
    ("pair", "view", "degree", "given", "why"),
    [
        (("r0", "t1"), None, {"r0": 3, "t1": 1}, "t1", "the other one is the last reliable machine"),
        (("r1", "t1"), ("r1",), {"r1": 3, "t1": 1}, "t1", "the other one has the only copy of a partition"),
        (("r1", "t1"), ("t1",), {"r1": 3, "t1": 1}, "r1", "more broken links speak against it"),
        (("t1", "t2"), ("t2",), {}, "t1", "the other one is a member"),
        (("r1", "t1"), ("t1",), {}, "t1", "the other one is reliable"),
        (("t1", "t2"), None, {}, "t2", "it is the younger one"),
    ],
)
def test_who_is_given_up(pair, view, degree, given, why):
    members, _ = make("r0", "r1", "t1", "t2")
    if view is None:
        members.nodes["r1"].is_silent = True
        found = None
    else:
        owner = view if view == ("r1",) else ("t1",)
        there = ("r0", "r1", "t1") if given != "t1" or pair[0] == "r1" else ("r0", "t2")
        found = make_view(*there, owner=owner, backup=("r1",))
    assert choose(*pair, members, found, Counter(degree)) == (given, f"{given} is given up: {why}")


def test_newcomers_that_do_not_reach_a_machine_that_serves_are_given_up_and_not_it():
    members, links = make("r0", "t1", "t2", "t3", "t4")
    said = {newcomer: ["t1"] for newcomer in ("t2", "t3", "t4")}
    found, _ = go_on(members, links, 60.0, said, view=make_view("r0", "t1"))
    assert found.machine == "t2" and found.reason.startswith("t1 and t2 have not")


def test_a_machine_that_serves_and_reaches_no_other_that_serves_is_given_up():
    members, links = make("r0", "t1", "t2", "t3")
    found, _ = go_on(members, links, 60.0, {"t1": ["r0", "t2", "t3"]}, view=make_view("r0", "t1", "t2"))
    assert found.machine == "t1"


def test_a_newcomer_that_reaches_no_other_newcomer_is_given_up_and_not_they():
    members, links = make("r0", "t1", "t2", "t3")
    found, _ = go_on(members, links, 60.0, {"t1": ["t2", "t3"]}, view=make_view("r0"))
    assert found.machine == "t1"


def test_it_comes_back_when_nobody_accuses_it_and_later_each_time():
    members, links = make("r0", "t1", "t2")
    said, now_s, waits_s = {"t1": ["t2"]}, 10.0, []
    for _ in range(3):
        found, now_s = go_on(members, links, 60.0, said, from_s=now_s)
        members.keep_apart(found.machine, now_s)
        assert go_on(members, links, 20.0, said, from_s=now_s) is None
        now_s += 20.0
        assert links.back(members, now_s) == []
        healed_s = now_s
        while not links.back(members, now_s):
            assert go_on(members, links, 1.0, {}, from_s=now_s) is None
            now_s += 1.0
        waits_s.append(now_s - healed_s)
        members.take_back("t2")
        assert members.is_alive("t2")
    assert waits_s == [pytest.approx(LEAST_S * factor, abs=3.5) for factor in (1, 2, 4)]


@pytest.mark.parametrize("times", [12, 10_000])
def test_however_often_it_was_given_up_an_hour_is_enough(times):
    members, links = make("r0", "t1", "t2")
    found, at_s = go_on(members, links, 60.0, {"t1": ["t2"]})
    members.keep_apart(found.machine, at_s)
    members.nodes["t2"].times_apart = times
    assert links.back(members, at_s + LONGEST_S - 1.0) == []
    assert links.back(members, at_s + LONGEST_S) == ["t2"]


def test_machines_that_are_gone_are_forgotten():
    members, links = make("r0", "t1", "t2")
    assert go_on(members, links, 3.0, {"t1": ["t2"]}) is None
    members.gone("t2")
    members.forget(frozenset())
    assert go_on(members, links, 20.0, {"t1": ["t2"]}, from_s=13.0) is None


def test_an_accusation_that_stops_for_a_timeout_counts_anew():
    """Two short breaks, one soon after the other, are not a long one."""
    members, links = make("r0", "t1", "t2")
    assert go_on(members, links, 4.0, {"t1": ["t2"]}) is None
    assert go_on(members, links, 1.4, {}, from_s=14.0) is None
    assert go_on(members, links, 4.0, {"t1": ["t2"]}, from_s=15.4) is None
