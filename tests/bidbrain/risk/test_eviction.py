"""Exact tables against counting every second; survival by state; hazards."""

import math
from statistics import median_low

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.history.availability import Trace
from bidbrain.history.prices import History, Market
from bidbrain.instants import Interval
from bidbrain.risk.eviction import EvictionTable, PriceNow, delta_index, mean_time_to_eviction_s
from bidbrain.risk.hazard import LossRate, PoolHazard, exponential_outlook
from bidbrain.risk.survival import SHRINK, SurvivalTable
from tests.bidbrain.makers import history_of, made_trace

MARKET = Market("c4.xlarge", "us-east-1a")
DELTAS = (1, 3, 10)
SPAN = 9000


@st.composite
def short_histories(draw: st.DrawFn) -> History:
    """Two and a half hours of a price that moves every few minutes; sometimes with a hole."""
    times = draw(st.lists(st.integers(1, SPAN), max_size=40, unique=True))
    prices = draw(st.lists(st.integers(1, 20), min_size=len(times) + 1, max_size=len(times) + 1))
    history = history_of({str(MARKET): list(zip([0, *sorted(times)], prices, strict=True))}, SPAN)
    hole = draw(st.none() | st.integers(4000, 5000))
    holes = () if hole is None else (Interval(hole, hole + 200),)
    return History(history.steps, SPAN, holes)


def naive_leads(history: History, window: Interval, delta: int) -> list[int | None]:
    """Lead time of every start second of the window (None: none within the hour)."""
    steps = history.steps[MARKET]
    leads: list[int | None] = []
    for piece in history.usable(window):
        for start in range(piece.start_s, piece.end_s - 3600 + 1):
            gone = steps.eviction_s(start, (steps.price_at(start) or 0) + delta)
            leads.append(gone - start if gone - start < 3600 else None)
    return leads


@given(short_histories(), st.integers(0, 3000), st.integers(6000, SPAN))
@settings(deadline=None, derandomize=True, max_examples=15)
def test_the_table_is_what_counting_every_second_gives(history: History, start: int, end: int) -> None:
    window = Interval(start, end)
    table = EvictionTable.train(history, [MARKET], window, DELTAS)
    for d, delta in enumerate(DELTAS):
        leads = naive_leads(history, window, delta)
        assert table.starts[0] == len(leads)
        for minutes in (0, 1, 7, 30, 60):
            evicted = [lead for lead in leads if lead is not None and lead < 60 * minutes]
            share = len(evicted) / len(leads) if leads else 0.0
            assert table.beta[0, d, minutes] == pytest.approx(share, abs=1e-12)
            if evicted:
                assert table.median_s[0, d, minutes] == median_low(evicted)
            held = [60 * minutes if lead is None else min(lead, 60 * minutes) for lead in leads]
            if held:
                assert table.mean_held_s[0, d, minutes] == pytest.approx(sum(held) / len(held))


@given(short_histories())
@settings(deadline=None, derandomize=True, max_examples=20)
def test_a_higher_bid_is_never_evicted_more_often(history: History) -> None:
    table = EvictionTable.train(history, [MARKET], Interval(0, SPAN), DELTAS)
    assert np.all(np.diff(table.beta[0, :, 60]) <= 1e-12)
    assert np.all(np.diff(table.beta[0], axis=1) >= -1e-12)


@given(short_histories())
@settings(deadline=None, derandomize=True, max_examples=10)
def test_survival_by_state_is_what_counting_gives(history: History) -> None:
    window, boot = Interval(0, SPAN), 120
    table = SurvivalTable.train(history, [MARKET], window, boot, DELTAS)
    steps = history.steps[MARKET]
    for d, delta in enumerate(DELTAS):
        by_state: dict[int, list[int]] = {state: [] for state in range(6)}
        starts = [
            start
            for piece in history.usable(window)
            for start in range(piece.start_s, piece.end_s - 3600 + 1)
        ]
        for start, lead in zip(starts, naive_leads(history, window, delta), strict=True):
            now = PriceNow(steps.price_at(start) or 0, steps.highest(start - 7200, start) or 0)
            by_state[table.state(MARKET, now)].append(3600 if lead is None else lead)
        everything = [lead for leads in by_state.values() for lead in leads]
        for state, leads in by_state.items():
            weight = len(leads) + SHRINK

            def shrunk(
                figure, leads: list[int] = leads, everything: list[int] = everything, weight: float = weight
            ) -> float:
                overall = sum(map(figure, everything)) / len(everything)
                return (sum(map(figure, leads)) + SHRINK * overall) / weight

            if everything:
                assert table.evicted[0, state, d] == pytest.approx(shrunk(lambda lead: lead < 3600))
                assert table.held_s[0, state, d] == pytest.approx(shrunk(lambda lead: lead))
                assert table.useful_s[0, state, d] == pytest.approx(shrunk(lambda lead: max(0, lead - boot)))


def test_nothing_after_the_window_is_looked_at(turbulent: History) -> None:
    window = Interval.parse("2016-03-05/2016-03-12")
    whole = EvictionTable.train(turbulent, turbulent.markets, window)
    cut = {
        market: type(steps)(
            steps.times[steps.times <= window.end_s], steps.prices[steps.times <= window.end_s]
        )
        for market, steps in turbulent.steps.items()
    }
    seen = EvictionTable.train(History(cut, turbulent.end_s), turbulent.markets, window)
    assert np.array_equal(whole.beta, seen.beta)
    assert np.array_equal(whole.median_s, seen.median_s)


def test_the_largest_delta_that_is_not_above_the_margin() -> None:
    assert [delta_index(DELTAS, margin) for margin in (-5, 0, 1, 2, 3, 9, 10, 99)] == [0, 0, 0, 0, 1, 1, 2, 2]


def test_mean_time_to_eviction_of_a_saw_tooth() -> None:
    history = history_of({str(MARKET): [(0, 5), (100, 50), (110, 5), (200, 50)]}, 300)
    # Below 10 for 100 s and for 90 s: mean of 1..100 and 1..90 over their 190 seconds.
    expected = (100 * 101 / 2 + 90 * 91 / 2) / 190
    assert mean_time_to_eviction_s(history, MARKET, 10, Interval(0, 300)) == pytest.approx(expected)
    assert math.isinf(mean_time_to_eviction_s(history, MARKET, 1, Interval(0, 300)))


def test_a_constant_hazard() -> None:
    out = exponential_outlook(1.0, 60)
    assert out.eviction_probability == pytest.approx(1 - math.exp(-1))
    assert out.mean_held_s == pytest.approx(3600 * (1 - math.exp(-1)))
    # Half of the evictions come before the median.
    before = 1 - math.exp(-out.median_to_eviction_s / 3600)
    assert before == pytest.approx(out.eviction_probability / 2)
    assert exponential_outlook(0.0, 60).eviction_probability == 0.0


def test_a_loss_rate_is_learned_and_forgotten() -> None:
    rate = LossRate()
    for _ in range(400):
        rate.observe(nodes=10, hours=1.0, lost=2)
    assert rate.per_node_hour == pytest.approx(0.2, rel=0.1)
    assert rate.events_per_hour == pytest.approx(0.8, rel=0.3)
    for _ in range(400):
        rate.observe(nodes=10, hours=1.0, lost=0)
    assert rate.per_node_hour < 0.01


def test_pools_of_known_hazard_are_told_apart() -> None:
    calm = made_trace("calm", 16, 300, 20.0, 1.0, 1)
    rough = made_trace("rough", 16, 300, 1.0, 1.0, 1)
    hazard = PoolHazard.train((calm, rough), 200 * 3600)
    assert hazard.rate(calm.market).per_node_hour < hazard.rate(rough.market).per_node_hour / 4
    now = PriceNow(1, 1)
    assert (
        hazard.outlook(calm.market, 0, now, 60).eviction_probability
        < hazard.outlook(rough.market, 0, now, 60).eviction_probability
    )


def test_what_a_pool_has_after_the_present_does_not_matter() -> None:
    trace = made_trace("p", 16, 100, 2.0, 2.0, 3)
    other = Trace(trace.market, trace.tick_s, np.append(trace.counts[:601], np.zeros(300, np.int64)))
    assert PoolHazard.train((trace,), 600 * 300) == PoolHazard.train((other,), 600 * 300)
