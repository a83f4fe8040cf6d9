"""Who has which units of which clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agileml.core.protocol.deal import Deal, bundles_of, share_of_slices, workers_of_slices
from agileml.core.protocol.view import INITIAL, ClockPlan, StageGroup, View
from straggler.coverage import union
from tests.agileml.core.fixtures import make_job
from tests.model.plans import RandomPlans

VIEW = View(
    epoch=1,
    stage=1,
    members=("a", "b"),
    owner=("a", "b"),
    backup=("a", "b"),
    share=(("a", 0b00111111), ("b", 0b11000000)),
    previous=("",) * 8,
    base=3,
    open=((3, (("b", 0b11), ("a", 0b100), ("b", 0b11000))),),
    timeline=1,
    committed=INITIAL,
)


def test_a_listed_clock_is_dealt_as_listed_and_others_by_the_share():
    deal = Deal(make_job(), VIEW)
    assert deal.bundles(3, "b") == (0b11, 0b11000)
    assert deal.bundles(3, "c") == ()
    assert deal.assignments(3) == VIEW.open[0][1]
    assert deal.bundles(4, "a") == (0b1111, 0b110000)
    assert deal.assignments(4) == (("a", 0b1111), ("a", 0b110000), ("b", 0b11000000))
    assert deal.bundles(4, "c") == ()


def test_a_share_is_one_bundle_where_the_order_of_adding_is_free():
    assert Deal(make_job("sum"), VIEW).assignments(5) == VIEW.share
    assert bundles_of(make_job("sum"), 0) == bundles_of(make_job(), 0) == ()


@given(st.lists(st.sampled_from("abc"), min_size=8, max_size=8), st.sampled_from([1, 2]))
def test_slices_make_a_share_that_gives_the_slices_back(workers, parts):
    job = make_job(parts=parts)
    share = share_of_slices(job, workers)
    assert workers_of_slices(job, share) == tuple(workers)
    deal = Deal(job, replace(VIEW, share=share))
    for worker, units in share:
        assert union(deal.bundles(9, worker)) == units
    assert union(units for _, units in deal.assignments(9)) == job.all_units


@given(st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_the_sums_of_a_plan_are_counted_as_its_bundles_would_be(parts_of):
    job = make_job(parts=4, clocks=99)
    job = replace(job, balancer=lambda units, home, _: RandomPlans(units, home, None, Counter()))
    share = (("a", 0xFFF), ("b", 0xFF000), ("c", 0xFFF00000))
    deal = Deal(job, replace(VIEW, members=("a", "b", "c"), share=share, open=()))
    units = (32 * parts_of[0] // sum(parts_of), 32 * parts_of[1] // sum(parts_of))
    units = (*(max(1, each) for each in units), 32 - sum(max(1, each) for each in units))
    deal.learn(ClockPlan(50, units))
    assert deal.sums_by(units) == tuple(len(deal.bundles(50, worker)) for worker in "abc")


STAGED = replace(
    VIEW,
    members=("a", "b", "c"),
    pipeline=(StageGroup(0, 1, (("a", 0b111), ("c", 0b11111000))), StageGroup(1, 2, (("b", 0b11111111),))),
)


def test_a_replica_has_its_units_of_every_clock_and_the_partitions_of_its_stage():
    deal = Deal(make_job("flush"), STAGED)
    assert deal.bundles(4, "a") == (0b11, 0b100)
    assert deal.bundles(4, "c") == (0b1000, 0b11110000)
    assert deal.bundles(4, "b") == (0b11111111,)
    assert deal.bundles(4, "d") == ()
    assert (deal.partitions("a"), deal.partitions("b"), deal.partitions("d")) == ((0,), (1,), ())


def test_of_an_open_clock_a_replica_has_what_is_open_of_its_units_whoever_the_list_names():
    deal = Deal(make_job("flush"), STAGED)
    assert deal.bundles(3, "a") == (0b11, 0b100)
    assert deal.bundles(3, "c") == (0b1000, 0b10000)
    assert deal.bundles(3, "b") == (0b11, 0b100, 0b1000, 0b10000)


# -- plans --------------------------------------------------------------------------------------------------


def planned(mode="dense", **more):
    return Deal(replace(make_job(mode), balancer=RandomPlans), VIEW, **more)


def test_a_planned_clock_is_dealt_once_its_plan_is_known():
    deal = planned()
    assert deal.bundles(4, "a") is None
    assert deal.assignments(4) == ()
    assert deal.bundles(4, "c") == ()  # works in open clocks at most
    deal.learn(ClockPlan(4, (3, 5)))
    assert deal.bundles(4, "a") == (0b11, 0b100)
    assert deal.assignments(4) == (("a", 0b11), ("a", 0b100), ("b", 0b1000), ("b", 0b11110000))
    assert deal.bundles(5, "b") is None
    assert deal.bundles(3, "b") == (0b11, 0b11000)  # open clocks are as the view says


def test_the_first_clocks_of_a_view_have_its_share_where_a_plan_must_come_a_clock_ahead():
    deal = planned("bsp")
    assert deal.bundles(4, "a") == (0b1111, 0b110000)
    assert deal.bundles(5, "a") is None
    assert not deal.is_planned(4)


def test_two_plans_of_a_clock_are_an_error_and_one_heard_twice_is_none():
    deal = planned(plans=[ClockPlan(4, (3, 5))])
    deal.learn(ClockPlan(4, (3, 5)))
    with pytest.raises(AssertionError, match="two plans of one clock in epoch 1"):
        deal.learn(ClockPlan(4, (4, 4)))


def test_old_plans_are_forgotten():
    deal = planned()
    for clock in range(4, 30):
        deal.learn(ClockPlan(clock, (3, 5)))
    assert deal.bundles(29, "a") is not None
    assert deal.bundles(25, "a") is None
