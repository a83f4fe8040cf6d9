"""Made markets: equal seeds give equal prices, and a longer opening changes none that were there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bidbrain.history.archive import repeated_rows_of, write_rows
from bidbrain.history.generate import Character, generate
from bidbrain.history.readers import read_history
from bidbrain.instants import DAY_S, Interval

MARKETS = [("c4.xlarge", zone, 209_000) for zone in ("us-east-1a", "us-east-1b")]
WINDOW = Interval(1_463_356_800, 1_463_356_800 + 3 * DAY_S)


@pytest.mark.parametrize("character", Character)
def test_spare_time_follows_a_window_whose_prices_stay(character: Character) -> None:
    for seed in range(5):
        plain = generate(MARKETS, WINDOW, character, seed)
        longer = generate(MARKETS, WINDOW, character, seed, spare_s=2 * DAY_S)
        assert (plain.end_s, longer.end_s) == (WINDOW.end_s, WINDOW.end_s + 2 * DAY_S)
        assert longer.markets == plain.markets
        for market, steps in plain.steps.items():
            found = longer.steps[market]
            before = found.times < WINDOW.end_s
            assert np.array_equal(found.times[before], steps.times)
            assert np.array_equal(found.prices[before], steps.prices)
            assert before.sum() < len(found.times) and found.times[-1] < longer.end_s


def test_markets_differ_by_seed_and_zone() -> None:
    first, second = (generate(MARKETS, WINDOW, Character.TURBULENT, seed) for seed in (1, 2))
    prices = [steps.prices.tolist() for history in (first, second) for steps in history.steps.values()]
    assert all(one != other for n, one in enumerate(prices) for other in prices[:n])


@pytest.mark.parametrize("character", Character)
def test_a_market_is_the_same_in_a_file(character: Character, tmp_path: Path) -> None:
    """Days without a change were holes there, in which no job started, and it ended with its last change."""
    window = Interval(WINDOW.start_s, WINDOW.start_s + 60 * DAY_S)
    made = generate(MARKETS[:1], window, character, seed=0)
    write_rows(tmp_path / "made.csv", repeated_rows_of(made))
    found = read_history([tmp_path / "made.csv"])
    assert (found.window, found.holes, found.gone) == (made.window, (), {})
    for market, steps in made.steps.items():
        assert np.array_equal(found.steps[market].times, steps.times)
        assert np.array_equal(found.steps[market].prices, steps.prices)
