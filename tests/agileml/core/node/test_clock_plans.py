"""The plans of partition 0: fixed once, from what was measured, and told to everybody alike."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.node.clock_plans import ClockPlans
from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.deal import Deal
from agileml.core.protocol.messages import Params, PlannedParams, Pull, TimedPush
from agileml.core.protocol.view import INITIAL, View
from straggler.lbbsp.policy import LbBsp
from straggler.speed.predictors import Memoryless
from tests.agileml.core.fixtures import make_job

VIEW = View(
    epoch=7,
    stage=1,
    members=("a", "b"),
    owner=("a", "b"),
    backup=("a", "b"),
    share=(("a", 0x00FF), ("b", 0xFF00)),
    previous=("",) * 16,
    base=3,
    open=((3, (("a", 0xFFFF),)),),
    timeline=1,
    committed=INITIAL,
)


def make(mode="dense", view=VIEW, clocks=20):
    job = replace(
        make_job(mode, slices=16, clocks=clocks),
        balancer=lambda units, home, sums_of: LbBsp(units, Memoryless, home=home, sums_of=sums_of),
    )
    told = []
    return ClockPlans(job, view, told.append), told


def pull(clock):
    return Pull(7, 0, clock, ())


def count(plans, worker, clock, bundle, compute_s, now_s, expected=0.0):
    plans.counted(worker, TimedPush(7, 0, clock, bundle, Contribution(()), False, compute_s, expected), now_s)


def one_clock(plans, clock, **seconds):
    """Every worker pushes what it had, after so many seconds of computing; the messages take a tenth."""
    plan = plans.for_answer(clock)
    units = dict(zip("ab", plan.units if plan else (8, 8), strict=True))
    for worker, compute_s in seconds.items():
        count(plans, worker, clock, (1 << units[worker]) - 1, compute_s, clock + compute_s + 0.1)
    plans.advanced(clock + 1, clock + 1.0)


def test_a_plan_is_fixed_by_the_first_answer_and_repeated_by_the_others():
    plans, _ = make()
    first = plans.answer(pull(4), 4, ())
    assert isinstance(first, PlannedParams)
    assert (first.plan.clock, first.plan.units) == (4, (8, 8))
    count(plans, "a", 4, 0xFF, 1.0, 5.0)
    count(plans, "b", 4, 0xFF00, 3.0, 5.0)
    plans.advanced(5, 5.0)
    assert plans.answer(pull(4), 4, ()) == first
    assert plans.for_answer(5).units == (12, 4)
    assert [plan.clock for plan in plans.fixed] == [4, 5]


def test_an_open_clock_has_no_plan_and_is_not_measured():
    plans, _ = make()
    assert type(plans.answer(pull(3), 3, ())) is Params
    one_clock(plans, 3, a=1.0)
    assert plans.for_answer(4).units == (8, 8)


def test_where_rows_depend_on_units_the_plan_goes_a_clock_ahead():
    plans, _ = make("bsp")
    assert plans.for_answer(3) is None  # clock 4 has the view's share
    assert plans.for_answer(4).clock == 5


def test_no_plan_goes_beyond_the_last_clock():
    plans, _ = make(clocks=5)
    assert plans.for_answer(4).clock == 4
    assert plans.for_answer(5) is None


def test_the_time_of_messages_is_what_the_push_took_beyond_computing():
    plans, _ = make()
    for clock in range(4, 8):
        plan = plans.for_answer(clock)
        for worker, units, late_s in zip("ab", plan.units, (0.0, 0.8), strict=True):
            compute_s = 0.1 * units
            count(plans, worker, clock, (1 << units) - 1, compute_s, 10.0 * clock + compute_s + late_s)
        plans.advanced(clock + 1, 10.0 * (clock + 1))
    assert plans.for_answer(8).units == (12, 4)  # .1 s each: 1.2 s, and .4 s + .8 s


def test_what_a_worker_expects_of_itself_counts_more_than_what_it_did():
    plans, _ = make()
    plans.for_answer(4)
    for worker, units, expected in (("a", 0xFF, 24.0), ("b", 0xFF00, 8.0)):
        count(plans, worker, 4, units, 1.0, 5.0, expected)  # both did 8 units/s
    plans.advanced(5, 5.0)
    assert plans.for_answer(5).units == (12, 4)
    one_clock(plans, 5, a=1.5, b=0.5)  # 8 units/s, and nothing is expected any more
    assert plans.for_answer(6).units == (8, 8)


def test_with_an_all_reduce_everybody_hears_what_each_expects():
    plans, _ = make()
    plans.for_answer(4)
    plans.measured(4, {"a": 1.0, "b": 1.0, "server": 0.0}, {"a": 2.0, "b": 6.0, "server": 0.0})
    assert plans.for_answer(5).units == (4, 12)


def test_with_an_all_reduce_every_machine_hears_what_each_spent():
    plans, _ = make()
    plans.for_answer(4)
    plans.measured(4, {"a": 1.0, "b": 3.0, "server": 0.0}, dict.fromkeys(("a", "b", "server"), 0.0))
    assert plans.for_answer(5).units == (12, 4)


def test_a_machine_without_a_worker_of_its_own_plans_nothing():
    plans, _ = make()
    plans.measured(4, {"a": 1.0, "b": 3.0}, {"a": 0.0, "b": 0.0})  # it asked for no plan of clock 4
    assert plans.fixed == ()


def test_only_notable_plans_are_told():
    plans, told = make()
    one_clock(plans, 4, a=1.0, b=1.0)
    one_clock(plans, 5, a=1.0, b=3.0)
    one_clock(plans, 6, a=1.5, b=1.5)
    assert [(plan.clock, plan.units) for plan in told] == [(6, (("a", 12), ("b", 4)))]
    assert "2 of 2 workers measured" in told[0].reason


def last_clock(*, knows_sums):
    """Its seconds, and the most sums of a machine: 64 units on two machines of unlike speed; each sum takes .2 s."""
    view = replace(VIEW, share=(("a", (1 << 32) - 1), ("b", ((1 << 32) - 1) << 32)), open=())
    job = replace(
        make_job("dense", slices=16, parts=4, clocks=40),
        balancer=lambda units, home, sums_of: LbBsp(
            units, Memoryless, home=home, sums_of=sums_of if knows_sums else None
        ),
    )
    plans, deal = ClockPlans(job, view, lambda event: None), Deal(job, view)
    ends_s, most = [], 0
    for clock in range(3, 12):
        if (plan := plans.for_answer(clock)) is not None:
            deal.learn(plan)
        bundles = {worker: deal.bundles(clock, worker) for worker in "ab"}
        ends_s, most = [], max(map(len, bundles.values()))
        for worker, speed in (("a", 32.0), ("b", 12.0)):
            now_s = 10.0 * clock + 0.2  # the pull
            for bundle in bundles[worker]:
                compute_s = bundle.bit_count() / speed
                now_s += compute_s + 0.2
                count(plans, worker, clock, bundle, compute_s, now_s)
            ends_s.append(now_s - 10.0 * clock)
        plans.advanced(clock + 1, 10.0 * (clock + 1))
    return max(ends_s), most


def test_sums_that_take_long_are_few():
    (aware_s, aware), (unaware_s, unaware) = (last_clock(knows_sums=knows) for knows in (True, False))
    assert aware <= 2 < unaware
    assert aware_s <= 0.9 * unaware_s
