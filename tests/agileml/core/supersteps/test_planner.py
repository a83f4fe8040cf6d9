"""Supersteps of a view: who gets which minibatches, fixed once, and begun when all are done with the one before."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agileml.core.protocol.superstep_messages import SuperstepPlan
from agileml.core.protocol.supersteps import SuperstepDeal
from agileml.core.protocol.view import INITIAL, View
from agileml.core.supersteps.planner import SuperstepPlanner
from straggler.coverage import members
from tests.agileml.core.fixtures import make_job

JOB = make_job("elastic", slices=8, clocks=20)  # a range of 4
END = 8 * 20
VIEW = View(
    epoch=7,
    stage=1,
    members=("a", "b"),
    owner=("a", "b"),
    backup=("a", "b"),
    share=(("a", 0x0F), ("b", 0xF0)),
    previous=("",) * 8,
    base=2,
    open=(),
    timeline=1,
    committed=INITIAL,
)
BROKEN_OFF = replace(
    VIEW, open=((2, (("a", 0b10), ("b", 0x80))), (3, (("a", 0b1), ("b", 0b10), ("b", 0xF8))))
)


def make(view=VIEW, known=None):
    told = []
    return SuperstepPlanner(JOB, view, told.append, known or {}), told


def work(planner, plan, ends_s):
    """Every worker pushes its minibatches, each after so many seconds, and asks for more."""
    (first_s,) = {end_s - each_s for end_s, each_s in ends_s.values()}
    for at, (worker, (_, each_s)) in enumerate(ends_s.items()):
        for number in range(plan.units[at]):
            planner.counted(worker, first_s + each_s * (number + 1))


def test_all_get_one_minibatch_until_they_are_measured_and_then_by_speed():
    planner, told = make()
    assert planner.plan("a", 16, END, 0.0) == SuperstepPlan(16, (1, 1))
    work(planner, planner.plan("b", 16, END, 0.0), {"a": (1.0, 1.0), "b": (3.0, 3.0)})
    assert planner.plan("a", 18, END, 3.0) is None, "b is not done"
    assert planner.plan("b", 18, END, 3.0) == SuperstepPlan(18, (3, 1))
    assert planner.plan("a", 18, END, 3.5) == SuperstepPlan(18, (3, 1))
    assert [(chosen.first, dict(chosen.units)) for chosen in told] == [
        (16, {"a": 1, "b": 1}),
        (18, {"a": 3, "b": 1}),
    ]
    assert told[0].reason == "not measured yet: a, b"
    assert told[1].predicted_s == 3.0 and "least rate" in told[1].reason


def test_one_slow_minibatch_of_many_does_not_make_a_worker_slow():
    planner, _ = make(known={"a": 10**9, "b": 3 * 10**9})
    assert planner.plan("a", 16, END, 0.0) == SuperstepPlan(16, (3, 1))
    for worker, at_s in (("a", 0.9), ("a", 1.8), ("b", 3.0), ("a", 3.2)):  # the last of a took 1.4 s
        planner.counted(worker, at_s)
    assert planner.plan("a", 20, END, 3.2) is None
    assert planner.plan("b", 20, END, 3.2) == SuperstepPlan(20, (3, 1))


def test_who_asks_for_an_older_superstep_gets_the_newest():
    planner, _ = make(known={"a": 1, "b": 100})
    assert planner.plan("a", 16, END, 0.0) == planner.plan("a", 3, END, 9.0)


def test_a_superstep_ends_at_the_stop_and_leaves_little_to_no_other():
    planner, _ = make(known={"a": 10, "b": 30})
    assert planner.plan("a", 16, 16 + 5, 0.0) == SuperstepPlan(16, (4, 1)), "instead of 3 and 1, and one more"
    for worker in "ab":
        assert planner.plan(worker, 21, 21, 1.0) is None
    assert planner.plan("b", 21, END, 2.0) == SuperstepPlan(21, (3, 1))


def test_a_cut_lies_where_a_superstep_can_end():
    planner, _ = make(known={"a": 10, "b": 40})
    assert planner.meets_at(2) and planner.meets_at(3) and planner.version == 2
    planner.plan("a", 16, END, 0.0)
    assert not planner.meets_at(2) and planner.meets_at(3) and planner.version == 3
    broken_off, _ = make(BROKEN_OFF)
    assert not broken_off.meets_at(3), "something of clock 3 may be counted at one partition"
    assert broken_off.meets_at(4) and broken_off.version == 4


def test_minibatches_that_are_counted_everywhere_are_nobodys():
    deal = SuperstepDeal(JOB, BROKEN_OFF)
    assert deal.first == 2 * 8 + 1
    plan = SuperstepPlan(17, (2, 3))
    assert deal.deal(plan) == {"a": (17, 24), "b": (23, 25, 27)}
    assert deal.after(plan) == 28


@given(st.data())
def test_supersteps_in_a_row_have_every_open_minibatch_once(data):
    """Whatever the plans, and whatever a change left open."""
    units = st.integers(0, 255)
    opened = {2: data.draw(units), 3: data.draw(units)}
    dealt = tuple(
        (clock, tuple(("a" if unit % 3 else "b", 1 << unit) for unit in members(left)))
        for clock, left in opened.items()
    )
    deal = SuperstepDeal(replace(JOB, clocks=5), replace(VIEW, open=dealt))
    wanted = [clock * 8 + unit for clock in (2, 3, 4) for unit in members(opened.get(clock, 255))]
    assert list(deal.positions(2 * 8)) == wanted
    found, first = [], deal.first
    while first < deal.end:
        left = sum(1 for _ in deal.positions(first))
        a = data.draw(st.integers(0, left))
        b = data.draw(st.integers(0 if a else min(1, left), left - a))
        plan = SuperstepPlan(first, (a, b))
        positions = deal.deal(plan)
        assert [len(positions[worker]) for worker in "ab"] == [a, b]
        found += sorted(positions["a"] + positions["b"])
        first = deal.after(plan)
        if not a + b:
            break
    assert found == wanted
