"""Who has which units of which clock."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agileml.core.protocol.deal import Deal, bundles_of, share_of_slices, workers_of_slices
from agileml.core.protocol.view import INITIAL, View
from straggler.coverage import union
from tests.agileml.core.fixtures import make_job

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
