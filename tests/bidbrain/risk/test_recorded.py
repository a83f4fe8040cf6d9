"""What recorded prices say of the risk of a pool, against counting minute by minute."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.history.prices import History, Market, Steps
from bidbrain.instants import Interval
from bidbrain.risk.pooled import HALF_LIFE_H
from bidbrain.risk.recorded import known_from_prices
from tests.thorough import examples

HOUR, DAY = 3600, 86_400
MARKET = Market("c4.xlarge", "us-east-1a")
ON_DEMAND = 200_000


def seen(rows: list[tuple[int, int]], window: Interval, holes: tuple[Interval, ...] = ()):
    """The sums of one market, the recording of which ends with the window."""
    steps = Steps.from_rows([at for at, _ in rows], [price for _, price in rows])
    history = History({MARKET: steps}, window.end_s, holes)
    return known_from_prices(history, {MARKET: ON_DEMAND}, window).sums[MARKET]


@given(
    st.lists(st.tuples(st.integers(1, 60 * 24), st.sampled_from([100_000, 150_000, 300_000])), max_size=20),
    st.integers(0, 20 * 24),
    st.integers(0, 5 * 24),
)
@settings(deadline=None, derandomize=True, max_examples=examples(40))
def test_hours_and_losses_are_those_of_counting(stays, hole_h: int, hole_length_h: int) -> None:
    """Hours fade one by one, and a hole has none: neither the hours within nor what was different behind it."""
    rows = [(0, 100_000)]
    for hours, price in stays:
        rows.append((rows[-1][0] + hours * HOUR, price))
    window = Interval(0, 60 * DAY)
    rows = [row for row in rows if row[0] < window.end_s]
    hole = Interval(hole_h * HOUR, (hole_h + hole_length_h) * HOUR)
    rows = [row for row in rows if not hole.start_s < row[0] < hole.end_s]
    at = np.arange(0, window.end_s, HOUR // 4) + HOUR // 8
    price = np.array([p for _, p in rows])[np.searchsorted([t for t, _ in rows], at, side="right") - 1]
    known = (price <= ON_DEMAND) & ~((at > hole.start_s) & (at < hole.end_s))
    weight = 0.5 ** ((window.end_s - at) / HOUR / HALF_LIFE_H)
    lost = sum(
        0.5 ** ((window.end_s - t) / HOUR / HALF_LIFE_H)
        for (_, before), (t, after) in pairwise(rows)
        if before <= ON_DEMAND < after and (t != hole.end_s or not hole.seconds)
    )
    found = seen(rows, window, (hole,) if hole.seconds else ())
    assert found.node_h == pytest.approx(float(weight @ known) / 4, rel=1e-6, abs=1e-9)
    assert (found.lost, found.events) == pytest.approx((lost, lost))


def test_a_price_that_stays_for_months_is_as_many_hours_as_one_that_is_repeated_with_a_change() -> None:
    window = Interval(0, 90 * DAY)
    still = seen([(0, 100_000)], window)
    moving = seen([(hour * HOUR, 100_000 + hour % 2) for hour in range(90 * 24)], window)
    assert still.node_h == pytest.approx(moving.node_h, rel=1e-9)
