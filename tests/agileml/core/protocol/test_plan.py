"""Planned events: in order, at their clock, one at a time."""

from __future__ import annotations

import pytest

from agileml.core.protocol.inputs import Admit, Notice
from agileml.core.protocol.plan import PlannedFault, PlannedJoin, PlannedNotice, PlanRunner
from agileml.events.terms import Fault, Tier

WAITING = {Tier.TRANSIENT: ["w1", "w2"], Tier.RELIABLE: ["w3"]}
HERE = {Tier.TRANSIENT: ["t1", "t2", "t3"], Tier.RELIABLE: ["r1", "r2"]}


def test_an_event_fires_when_its_clock_is_complete_and_ends_when_everybody_knows():
    runner = PlanRunner([PlannedNotice(7, 1, 60.0), PlannedJoin(3, 2)], seed=1)
    assert runner.limit(20) == 3
    assert runner.fire(2, WAITING, HERE, 5.0) is None
    fired = runner.fire(3, WAITING, HERE, 5.0)
    assert str(fired.event) == "clock 3: join 2 transient"
    assert fired.actions == (Admit("w1"), Admit("w2"))
    assert runner.limit(20) == 7
    assert runner.fire(9, WAITING, HERE, 5.0) is None, "the one before is not finished"
    assert runner.settle(["t1", "w1"], [], 5.0, is_quiet=True) is None
    assert runner.settle(["t1", "w1", "w2"], [], 5.0, is_quiet=False) is None
    assert runner.settle(["t1", "w1", "w2"], [], 5.0, is_quiet=True) == (fired.index, fired.event)
    fired = runner.fire(9, WAITING, HERE, 5.0)
    assert str(fired.event) == "clock 7: notice 1, 60 s ahead"
    (action,) = fired.actions
    assert action.deadline_s == 65.0
    stay = [name for name in HERE[Tier.TRANSIENT] if name != action.node]
    assert runner.settle(HERE[Tier.TRANSIENT], [], 5.0, is_quiet=True) is None
    assert runner.settle(stay, [], 5.0, is_quiet=True) == (fired.index, fired.event)
    assert runner.is_over
    assert runner.limit(20) == 20


def test_machines_that_died_are_not_waited_for():
    runner = PlanRunner([PlannedJoin(1, 2)], seed=1)
    runner.fire(1, WAITING, HERE, 0.0)
    assert runner.settle(["w1"], [], 5.0, is_quiet=True) is None
    assert runner.settle(["w1"], ["w2"], 5.0, is_quiet=True) is not None


def test_a_join_counts_as_fired_for_the_next_controller_once_its_machines_are_members():
    runner = PlanRunner([PlannedNotice(1, 1, 9.0), PlannedJoin(2, 2)], seed=1)
    runner.fire(1, WAITING, HERE, 0.0)
    assert runner.fired_by(["t1"], ()) == (0,)
    runner.settle([], [], 9.0, is_quiet=True)
    runner.fire(2, WAITING, HERE, 10.0)
    assert runner.fired_by(["t1"], (0,)) == (0,)
    assert runner.fired_by(["t1", "w1"], (0,)) == (0, 1)
    assert runner.fired_by(["t1"], (0, 1)) == (0, 1), "they joined, and have left"
    assert runner.settle([], ["w1", "w2"], 10.0, is_quiet=True) is not None
    assert runner.fired_by(["t1"], (0,)) == (0, 1)


def test_a_join_of_a_tier_takes_machines_of_that_tier():
    runner = PlanRunner([PlannedJoin(1, 1, Tier.RELIABLE)], seed=1)
    assert runner.fire(1, WAITING, HERE, 0.0).actions == (Admit("w3"),)


def test_a_join_waits_for_its_machines():
    runner = PlanRunner([PlannedJoin(1, 3)], seed=1)
    assert runner.fire(5, WAITING, HERE, 0.0) is None
    assert runner.is_idle and not runner.is_over


def test_a_join_waits_for_its_machines_no_longer_than_its_patience():
    runner = PlanRunner([PlannedJoin(1, 3), PlannedJoin(2, 3)], seed=1, patience_s=10.0)
    assert runner.fire(5, WAITING, HERE, 100.0) is None
    assert runner.fire(5, WAITING, HERE, 109.9) is None
    assert runner.fire(5, WAITING, HERE, 110.0).actions == (Admit("w1"), Admit("w2"))
    assert runner.settle(["w1", "w2"], [], 110.1, is_quiet=True) is not None
    assert runner.fire(5, {}, HERE, 111.0) is None, "each waits anew"
    assert runner.fire(5, {}, HERE, 120.9) is None
    assert runner.fire(5, {}, HERE, 121.0).actions == ()
    assert runner.settle([], [], 121.0, is_quiet=True) is not None
    assert runner.is_over


@pytest.mark.parametrize(("count", "expected"), [(None, 3), (2, 2), (5, 3)])
def test_a_notice_is_for_so_many_machines_or_for_all_that_are_left(count, expected):
    fired = PlanRunner([PlannedNotice(1, count, 9.0)], seed=1).fire(1, WAITING, HERE, 0.0)
    assert len({action.node for action in fired.actions if isinstance(action, Notice)}) == expected


def test_who_gets_a_notice_depends_on_the_seed_alone():
    who = lambda seed: PlanRunner([PlannedNotice(1, 1, 9.0)], seed).fire(1, {}, HERE, 0.0).actions[0].node  # noqa: E731
    assert who(1) == who(1)
    assert {who(seed) for seed in range(20)} == set(HERE[Tier.TRANSIENT])


def test_events_of_one_clock_keep_their_order():
    runner = PlanRunner([PlannedNotice(2, 1, 1.0), PlannedJoin(2, 1)], seed=1)
    assert isinstance(runner.fire(2, WAITING, HERE, 0.0).event, PlannedNotice)


def test_a_killed_machine_is_waited_for_until_it_is_out_and_a_frozen_one_until_it_is_back():
    runner = PlanRunner([PlannedFault(1, Fault.KILL, 1), PlannedFault(2, Fault.FREEZE, 1, 3.0)], seed=1)
    (killed,) = runner.fire(1, {}, HERE, 0.0).actions[0].nodes
    assert runner.settle([killed], [], 0.0, is_quiet=True) is None
    assert runner.settle([], [killed], 0.0, is_quiet=True) is not None
    (frozen,) = runner.fire(2, {}, HERE, 10.0).actions[0].nodes
    assert runner.settle([frozen], [], 12.9, is_quiet=True) is None
    assert runner.settle([], [], 13.1, is_quiet=True) is None
    assert runner.settle([frozen], [], 13.1, is_quiet=True) is not None
    assert runner.is_over


def test_a_controller_that_is_to_be_killed_fires_nothing_more():
    events = [PlannedFault(1, Fault.KILL_CONTROLLER), PlannedFault(2, Fault.FREEZE, 1, 3.0)]
    doomed = PlanRunner(events, seed=1)
    assert doomed.fire(1, {}, HERE, 0.0) is not None
    assert doomed.settle([], [], 1e9, is_quiet=True) is None
    assert doomed.fire(2, {}, HERE, 1e9) is None
    assert doomed.limit(20) == 2
    following = PlanRunner(events, seed=1, fired=doomed.fired)
    assert following.settle([], [], 0.0, is_quiet=True) == (0, events[0])
    assert following.fire(2, {}, HERE, 0.0).event is events[1]


def test_the_next_controller_fires_the_events_that_have_not_fired_whether_at_a_clock_or_at_a_time():
    events = [
        PlannedNotice(9, 1, 1.0),
        PlannedFault(None, Fault.KILL_CONTROLLER, at_s=2.0),
        PlannedNotice(None, 1, 1.0, at_s=4.0),
    ]
    doomed = PlanRunner(events, seed=1)
    assert doomed.fire(0, {}, HERE, 0.0) is None
    assert doomed.fire(3, {}, HERE, 2.0).event is events[1]
    assert doomed.fire(9, {}, HERE, 50.0) is None
    following = PlanRunner(events, seed=1, fired=doomed.fired)
    assert following.limit(20) == 9
    assert following.settle([], [], 60.0, is_quiet=True) == (1, events[1])
    assert following.fire(5, {}, HERE, 60.0) is None
    assert following.fire(5, {}, HERE, 64.0).event is events[2]
    assert PlanRunner(events, 1, following.fired).fire(9, {}, HERE, 0.0) is None  # until the notice has ended


def test_faults_strike_their_tier():
    strike = lambda kind: PlanRunner([PlannedFault(1, kind, 5)], 1).fire(1, {}, HERE, 0.0).actions[0].nodes  # noqa: E731
    assert set(strike(Fault.KILL)) == set(HERE[Tier.TRANSIENT])
    assert set(strike(Fault.KILL_RELIABLE)) == set(HERE[Tier.RELIABLE])
    assert set(strike(Fault.DISK_FULL)) == set(HERE[Tier.RELIABLE])
    assert strike(Fault.KILL_CONTROLLER) == ()


def test_a_speed_concerns_the_machine_that_it_names_if_it_is_there():
    one = HERE[Tier.TRANSIENT][0]
    runner = PlanRunner([PlannedFault(1, Fault.SPEED, factor=2.0, machine=name) for name in (one, "gone")], 1)
    fired = runner.fire(1, {}, HERE, 0.0)
    assert fired.actions[0].nodes == (one,) and str(fired.event) == f"clock 1: speed 0.5 of {one}"
    assert runner.settle([], [], 0.0, is_quiet=True) is not None
    assert runner.fire(1, {}, HERE, 0.0).actions[0].nodes == ()


def test_events_at_a_time_count_from_the_first_clock():
    runner = PlanRunner([PlannedNotice(None, 1, 9.0, at_s=5.0)], seed=1)
    assert runner.limit(20) == 20
    assert runner.fire(0, {}, HERE, 100.0) is None
    assert runner.fire(8, {}, HERE, 104.9) is None
    assert str(runner.fire(8, {}, HERE, 105.0).event) == "5 s: notice 1, 9 s ahead"
