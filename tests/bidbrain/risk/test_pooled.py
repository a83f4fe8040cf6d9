"""The usual rates: the Gamma posterior against integration, and what neighbours lend."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.history.prices import Market
from bidbrain.risk.pooled import (
    factors_of,
    fading,
    pooled_rates,
    posterior,
    shared_correlation,
    sums_of,
)
from bidbrain.risk.tally import Cell, Tally
from tests.thorough import examples

BAND = 0.001
DAY_S = 86_400


def band(_: Market) -> float:
    return BAND


def rates(seen: dict[tuple[str, str], tuple[float, float]]):
    sums = {Market(*pool): Cell(hours, lost, lost) for pool, (hours, lost) in seen.items()}
    return pooled_rates(sums, band)


@given(st.floats(1e-4, 1.0), st.integers(0, 30), st.floats(0.0, 2000.0), st.sampled_from([0.5, 1.0, 4.0]))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_the_posterior_is_bayes_rule_by_integration(prior, losses, hours, strength) -> None:
    # In log(rate), so that tiny and large rates have enough points.
    log_rate = np.linspace(np.log(1e-14), np.log(prior * 200 + 60 * (losses + 1) / (hours + 1)), 400_001)
    rate = np.exp(log_rate)
    log_weight = strength * log_rate - strength / prior * rate + losses * log_rate - rate * hours
    weight = np.exp(log_weight - log_weight.max())
    assert posterior(prior, losses, hours, strength) == pytest.approx(
        float((weight @ rate) / weight.sum()), rel=2e-3
    )


def test_a_pool_with_a_long_record_speaks_for_itself() -> None:
    found = rates(
        {("c5.xlarge", "us-east-1a"): (10_000.0, 200.0), ("m5.xlarge", "us-east-1b"): (10_000.0, 2.0)}
    )
    assert found.rate(Market("c5.xlarge", "us-east-1a")) == pytest.approx(0.02, rel=0.1)
    assert found.rate(Market("m5.xlarge", "us-east-1b")) == pytest.approx(0.0002, rel=0.6)


def test_a_pool_that_nobody_held_borrows_from_family_and_zone() -> None:
    found = rates({("c5.xlarge", "us-east-1a"): (2000.0, 200.0), ("m5.xlarge", "us-east-1b"): (2000.0, 2.0)})
    sister, same_zone = Market("c5.2xlarge", "us-east-1a"), Market("r5.large", "us-east-1a")
    stranger, safe = Market("r5.large", "us-west-2c"), Market("m5.large", "us-east-1b")
    assert found.rate(sister) > found.rate(same_zone) > found.rate(stranger) > found.rate(safe)


def test_a_zone_that_nobody_held_borrows_from_its_region() -> None:
    calm, rough = ("c5.xlarge", "us-west-2a"), ("c5.xlarge", "us-east-1a")
    found = rates({rough: (2000.0, 200.0), calm: (2000.0, 2.0)})
    unseen = [found.rate(Market("m5.xlarge", zone)) for zone in ("us-east-1c", "eu-west-1a", "us-west-2c")]
    assert unseen == sorted(unseen, reverse=True)
    assert unseen[0] > 3 * unseen[2]


def test_one_region_is_no_evidence_beside_that_of_all_pools() -> None:
    zones = {("c5.xlarge", f"us-east-1{letter}"): (1000.0, 10.0 * n) for n, letter in enumerate("abc")}
    unnamed = {(kind, zone[-1]): seen for (kind, zone), seen in zones.items()}
    own = rates(zones).rate(Market("m5.xlarge", "us-east-1b"))
    assert own == rates(unnamed).rate(Market("m5.xlarge", "b"))


def test_nothing_seen_is_the_band() -> None:
    assert rates({}).rate(Market("c5.xlarge", "us-east-1a")) == BAND


@given(st.floats(0.0, 1e4), st.integers(0, 50), st.integers(1, 20))
@settings(max_examples=examples(40), deadline=None, derandomize=True)
def test_more_losses_never_lower_a_rate_and_more_quiet_hours_never_raise_it(hours, lost, more) -> None:
    pool = ("c5.xlarge", "us-east-1a")
    now = rates({pool: (hours, float(lost))}).rate(Market(*pool))
    assert rates({pool: (hours, float(lost + more))}).rate(Market(*pool)) >= now
    assert rates({pool: (hours + more, float(lost))}).rate(Market(*pool)) <= now


def test_counts_fade_by_half_in_two_weeks() -> None:
    tally = Tally()
    pool = Market("c5.xlarge", "us-east-1a")
    tally.at(pool, 0).add(Cell(8.0, 4.0))
    faded = sums_of(tally, 14 * DAY_S)[pool]
    assert (faded.node_h, faded.lost) == (4.0, 2.0)
    assert fading(10, 0) == 1.0


def test_nodes_that_go_together_are_seen_to() -> None:
    assert shared_correlation([]) == 0.25
    alone = Cell(events=100, lost=100, beside=1500)
    together = Cell(events=100, lost=1600, extra=1500, beside=1500)
    assert shared_correlation([alone]) < 0.01
    assert shared_correlation([together]) > 0.99


def test_a_dangerous_hour_and_a_dangerous_age_are_learned() -> None:
    tally, pool = Tally(), Market("c5.xlarge", "us-east-1a")
    for day in range(30):
        for hour in range(24):
            lost = 6.0 if hour == 9 else 0.25
            cell = Cell(100.0, lost, lost)
            cell.by_age = [[25.0, lost], [25.0, 0.0], [25.0, 0.0], [25.0, 0.0]]
            tally.at(pool, day * DAY_S + hour * 3600).add(cell)
    now_s = 30 * DAY_S
    learned = factors_of(tally, pooled_rates(sums_of(tally, now_s), band), now_s)
    assert learned.by_hour[9] > 3.0
    assert max(learned.by_hour[:9]) < 1.0
    assert learned.by_age[0] > 3.0 > 1.0 > learned.by_age[3]
