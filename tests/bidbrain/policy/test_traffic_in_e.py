"""The price of traffic in E: its formula, the search against trying everything, and which region a job is bought in."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.billing.traffic import Routes, carried
from bidbrain.history.prices import History, Market
from bidbrain.instants import Interval
from bidbrain.policy.base import Decision, GiveBack, Holding, MarketView, Offer, Phase, Request
from bidbrain.policy.expected_cost import ExpectedCost
from bidbrain.policy.pool_model import Choices, Footprint, Roads, Terms
from bidbrain.policy.pool_search import fill, least_footprint
from bidbrain.setting import Engine, Listing, Reliable, Setting, Workload
from tests.bidbrain.policy import plain_pool_model as plain
from tests.bidbrain.policy.test_expected_cost import book_of
from tests.thorough import examples

HOME, NEXT_DOOR, AWAY = (Market("c5.xlarge", zone) for zone in ("us-east-1a", "us-east-1b", "us-west-2a"))
JOB = Workload(32, 10.0, 1.0, 1.0, None, Engine(180, 60, 0))

FLEETS = st.lists(
    st.tuples(st.floats(0.05, 1.0), st.floats(0.5, 2.0), st.floats(0.0, 0.5), st.integers(0, 2)),
    min_size=1,
    max_size=4,
)
RATES = st.tuples(*(st.floats(0.0, 0.5) for _ in range(3)))


def choices_of(pools, between, fixed: float = 0.0) -> Choices:
    rates = np.zeros((3, 3))
    for (one, other), rate in zip(((0, 1), (0, 2), (1, 2)), between, strict=True):
        rates[one, other] = rates[other, one] = rate
    n = len(pools)
    price, nu, loss = (np.array([pool[i] for pool in pools]) for i in range(3))
    roads = Roads(np.array([pool[3] for pool in pools], np.int64), rates, np.array([fixed, 0.0, 0.0]))
    return Choices(np.arange(n), np.full(n, 99.0), price, nu, np.ones(n), loss, roads)


def by_pairs(places: list[int], rates: np.ndarray) -> float:
    """Machine by machine: each two exchange 1 / (N - 1) of what one moves."""
    pairs = itertools.combinations(places, 2)
    return sum(rates[one, other] for one, other in pairs) / max(1, len(places) - 1)


@given(FLEETS, RATES, st.lists(st.integers(0, 5), min_size=4, max_size=4), st.integers(0, 2))
@settings(max_examples=examples(60), deadline=None, derandomize=True)
def test_traffic_is_paid_by_pairs_of_machines(pools, between, counts, reliable) -> None:
    counts = np.array(counts[: len(pools)], np.float64)
    choices = choices_of(pools, between, reliable)
    terms = Terms(8, 0.7, 0.05, 1 / 60, 0.3, fixed=0.4)
    footprint = Footprint(terms, choices, counts)
    machines = [0] * reliable + [p[3] for p, k in zip(pools, counts, strict=True) for _ in range(int(k))]
    expected = by_pairs(machines, choices.roads.rates)
    assert footprint.traffic == pytest.approx(expected)
    assert carried(np.bincount(machines, minlength=3), choices.roads.rates) == pytest.approx(expected)
    free = Footprint(terms, replace(choices, roads=None), counts).value
    if np.isfinite(free):
        assert footprint.value == pytest.approx(free * (footprint.cost + expected) / footprint.cost)
    more = footprint.values_with(np.full(len(pools), 2.0))
    for i in range(len(pools)):
        then = counts.copy()
        then[i] += 2
        assert more[i] == pytest.approx(Footprint(terms, choices, then).value)
        one = counts.copy()
        one[i] += 1
        extra = Footprint(terms, choices, one).traffic - footprint.traffic
        assert footprint.traffic_of_one_more()[i] == pytest.approx(extra, abs=1e-12)


@given(FLEETS, RATES, st.floats(0.2, 1.0), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 2))
@settings(max_examples=examples(100), deadline=None, derandomize=True)
def test_the_search_is_nearly_the_best_of_all_footprints(pools, between, phi, correlation, reliable) -> None:
    terms, choices = Terms(4, phi, 0.05, 1 / 60, correlation, fixed=0.3), choices_of(pools, between, reliable)
    footprint = least_footprint(terms, choices, (4, 6, 1.0, 0.0), [str(pool[3]) for pool in pools])
    best = min(
        Footprint(terms, choices, np.array(counts, np.float64)).value
        for counts in itertools.product(range(7), repeat=len(pools))
        if 4 <= sum(counts) <= 6
    )
    assert footprint.value <= 1.05 * best
    assert footprint.value == pytest.approx(Footprint(terms, choices, footprint.counts).value)


@given(FLEETS, RATES, st.floats(0.1, 1.0), st.floats(0, 1), st.integers(0, 2), st.sampled_from([0.0, 0.4]))
@settings(max_examples=examples(100), deadline=None, derandomize=True)
def test_the_compiled_search_is_the_plain_one(pools, between, phi, correlation, reliable, worth) -> None:
    choices, terms = choices_of(pools, between, reliable), Terms(8, phi, 0.05, 1 / 60, correlation, fixed=0.5)
    compiled, expected = Footprint(terms, choices), plain.Footprint(terms, choices)
    fill(compiled, 8, 12, 1.0, worth)
    plain.fill(expected, 8, 12, 1.0, worth)
    assert compiled.value == pytest.approx(expected.value)


def decide(
    prices: dict[Market, int],
    gb_per_h: float,
    held: dict[Market, int] | None = None,
    reliable: int = 4,
    home: str = "us-east-1a",
) -> Decision:
    """A decision two hours after the start; a machine has 4 vCPUs and costs .2 $/h on demand."""
    job = replace(JOB, traffic_gb_per_h=gb_per_h)
    offers = tuple(Offer(market, price, price, 200_000, 4, 4.0) for market, price in prices.items())
    paid = Reliable("c5.xlarge", reliable, 200_000, 4)
    listings = tuple(Listing(offer.market, 200_000, 4) for offer in offers)
    setting = Setting(
        *(job, listings, History({}, 0), Interval(0, 1), paid, 200_000),
        rules="per_second",
        routes=Routes(home),
    )
    own = [market for market, count in (held or {}).items() for _ in range(count)]
    holdings = tuple(
        Holding(number, market, 4, 200_000, Phase.HELD, 0, 0, 50_000) for number, market in enumerate(own)
    )
    view = MarketView(offers, holdings, job, job.work_vcpu_s, book_of(dict.fromkeys(prices, 0.01)))
    return ExpectedCost(setting, 0).decide(7200, view)


def first(decision: Decision) -> Market:
    return next(action.market for action in decision.actions if isinstance(action, Request))


def test_a_cheap_pool_in_another_region_is_bought_only_if_price_and_traffic_are_less() -> None:
    prices = {HOME: 60_000, AWAY: 50_000}
    # Nine machines, one of them at home: of what each of the others moves an eighth goes there, at .02 $ per GB.
    assert first(decide(prices, 0.0)) == AWAY
    assert first(decide(prices, 2.0)) == AWAY
    assert first(decide(prices, 8.0)) == HOME
    assert first(decide(prices | {AWAY: 30_000}, 8.0)) == AWAY


def test_zones_of_a_region_are_paid_for_too() -> None:
    prices = {HOME: 60_000, NEXT_DOOR: 55_000}
    assert first(decide(prices, 0.0)) == NEXT_DOOR
    assert first(decide(prices, 8.0)) == HOME
    assert first(decide(prices, 8.0, home="us-east-1b")) == NEXT_DOOR


def test_a_fleet_moves_to_another_region_as_a_whole_or_not_at_all() -> None:
    prices = {HOME: 80_000, NEXT_DOOR: 81_000, AWAY: 40_000}
    moves = decide(prices, 10.0, held={HOME: 4, NEXT_DOOR: 4}, reliable=0)
    assert first(moves) == AWAY
    assert "32 missing" in moves.reason
    stays = decide(prices | {AWAY: 79_900}, 10.0, held={HOME: 8}, reliable=0)
    assert not [a for a in stays.actions if isinstance(a, Request | GiveBack)]


def test_the_reason_names_the_dollars_of_traffic() -> None:
    decision = decide({HOME: 60_000, AWAY: 50_000}, 2.0)
    # Eight machines there, one here: each pair moves 2 / 8 GB per hour, at .02 $.
    assert "traffic 0.0400 $/h" in decision.reason
    assert "traffic" not in decide({HOME: 60_000, AWAY: 50_000}, 0.0).reason
    assert "traffic" not in decide({HOME: 60_000}, 8.0).reason


def test_a_pool_whose_traffic_makes_it_dearer_than_on_demand_is_not_bought() -> None:
    asked = [a for a in decide({AWAY: 150_000}, 40.0).actions if isinstance(a, Request)]
    assert not asked
    assert [a for a in decide({AWAY: 150_000}, 10.0).actions if isinstance(a, Request)]


def test_a_pool_that_just_lost_a_machine_is_asked_again() -> None:
    """It gave less than was asked, so it is not counted on; where no other pool has room it is asked all the same."""
    job = replace(JOB, traffic_gb_per_h=2.0)
    offers = (Offer(HOME, 50_000, 50_000, 200_000, 4, 4.0),)
    listings = (Listing(HOME, 200_000, 4),)
    paid = Reliable("c5.xlarge", 4, 200_000, 4)
    what = (job, listings, History({}, 0), Interval(0, 1), paid, 200_000)
    policy = ExpectedCost(Setting(*what, rules="per_second", routes=Routes("us-east-1a")), 0)
    for held, missing in ((0, 32), (7, 4)):
        own = [Holding(number, HOME, 4, 200_000, Phase.HELD, 0, 0, 50_000) for number in range(held)]
        view = MarketView(offers, own, job, job.work_vcpu_s, book_of({HOME: 0.01}))
        decision = policy.decide(7200 + 300 * held, view)
        asked = [action for action in decision.actions if isinstance(action, Request)]
        assert sum(action.vcpus * action.count for action in asked[:1]) == missing
