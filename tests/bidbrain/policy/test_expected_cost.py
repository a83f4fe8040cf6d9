"""The policy of least expected cost: which figures change its decisions, when it moves, and that it is never late."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.accounts.ledger import ENDINGS, EntryKind, Ledger
from bidbrain.accounts.rebill import rebill
from bidbrain.history.prices import History, Market
from bidbrain.instants import Interval
from bidbrain.policy.base import (
    Decision,
    GiveBack,
    Holding,
    MarketView,
    Offer,
    Phase,
    Request,
    RequestOnDemand,
)
from bidbrain.policy.expected_cost import ExpectedCost
from bidbrain.risk.book import Known, RiskBook
from bidbrain.risk.tally import Cell, Tally
from bidbrain.setting import Bidding, Engine, Listing, Reliable, Setting, Workload
from tests.bidbrain.makers import TICK, made_trace, pool
from tests.bidbrain.policy.test_today import run, setting_of

SAFE, RISKY = Market("c5.xlarge", "us-east-1a"), Market("m5.xlarge", "us-east-1b")
JOB = Workload(32, 10.0, 1.5, 1.0, None, Engine(180, 60, 0))


def book_of(rates: dict[Market, float], at_s: int = 0) -> RiskBook:
    tally = Tally()
    for market, rate in rates.items():
        tally.at(market, at_s).add(Cell(10_000.0, 10_000.0 * rate, 10_000.0 * rate))
    return RiskBook(Known.of_tally(tally, at_s + 3600))


def decide(
    job: Workload = JOB,
    prices: tuple[int, int] = (50_000, 50_000),
    rates: tuple[float, float] = (0.01, 0.02),
    held: dict[Market, int] | None = None,
    now_s: int = 7200,
    warned: frozenset[int] = frozenset(),
    done: float = 0.0,
    slot: int | None = None,
    on_demand: int = 0,
    nu: float = 4.0,
    reliable: int = 4,
) -> Decision:
    """A decision two hours after the start, on two pools of 4-vCPU machines (0.2 $/h on demand)."""
    offers = tuple(
        Offer(m, price, price, 200_000, 4, nu if m is RISKY else 4.0)
        for m, price in zip((SAFE, RISKY), prices, strict=True)
    )
    listings = tuple(Listing(offer.market, 200_000, 4) for offer in offers)
    paid = Reliable("c5.xlarge", reliable, 200_000, 4)
    setting = Setting(
        job, listings, History({}, 0), Interval(0, 1), paid, 200_000, Bidding(slot_vcpus=slot), "per_second"
    )
    holdings = []
    for market, count in (held or {}).items():
        for _ in range(count):
            number = len(holdings)
            holdings.append(Holding(number, market, 4, 200_000, Phase.HELD, 0, 0, 50_000))
    for _ in range(on_demand):
        number = len(holdings)
        holdings.append(Holding(number, paid.market, 4, 200_000, Phase.HELD, 0, 0, 200_000))
    risk = book_of({SAFE: rates[0], RISKY: rates[1]})
    view = MarketView(offers, tuple(holdings), job, job.work_vcpu_s * (1 - done), risk, warned)
    return ExpectedCost(setting, 0).decide(now_s, view)


def bought(decision: Decision) -> dict[Market, int]:
    """vCPUs of the first request of each market."""
    return {a.market: a.vcpus * a.count for a in decision.actions if isinstance(a, Request)}


def first(decision: Decision) -> Market:
    return next(a.market for a in decision.actions if isinstance(a, Request))


def released(decision: Decision) -> int:
    return sum(isinstance(action, GiveBack) for action in decision.actions)


def test_the_price_and_the_learned_hazard_choose_the_pool() -> None:
    assert first(decide()) == SAFE
    assert first(decide(rates=(0.5, 0.01))) == RISKY
    assert first(decide(prices=(60_000, 50_000))) == RISKY
    assert "c5.xlarge@us-east-1a first: 0.0500 $/h, " in decide().reason


def test_the_worth_of_a_type_chooses_too() -> None:
    assert first(decide(nu=8.0)) == RISKY


def test_phi_says_how_many() -> None:
    # The reliable machine's bill is spread over more work, if more machines work.
    assert bought(decide(replace(JOB, phi=1.0)))[SAFE] == 48
    assert bought(decide(replace(JOB, phi=0.1)))[SAFE] == 32


def test_the_cap_is_kept_and_the_slot_is_the_size_of_a_request() -> None:
    assert bought(decide(replace(JOB, cap=1.25)))[SAFE] == 40
    requests = [a for a in decide(slot=16).actions if isinstance(a, Request)]
    assert {a.vcpus for a in requests} == {16}


def test_what_is_less_than_a_slot_is_asked_for_too() -> None:
    """A slot more than the fleet may have is not tried: without this a large one is never granted at all."""
    for slot in (20, 32, 1000):
        decision, held = decide(slot=slot), 0
        for asked in [a for a in decision.actions if isinstance(a, Request)]:
            for _ in range(asked.count):
                if held + asked.vcpus <= (decision.fill or 0):
                    held += asked.vcpus
        assert held == decision.fill == 48


def test_lambda_makes_a_dangerous_pool_dearer() -> None:
    prices, rates = (60_000, 50_000), (0.001, 0.5)
    cheap, dear = (replace(JOB, engine=Engine(180, lost, 0)) for lost in (0, 900))
    assert first(decide(cheap, prices, rates)) == RISKY
    assert first(decide(dear, prices, rates)) == SAFE


def test_sigma_keeps_what_is_held() -> None:
    job = replace(JOB, cap=1.0, hours=0.2)
    moves = decide(job, (60_000, 45_000), (0.01, 0.01), held={SAFE: 8})
    stays = decide(replace(job, engine=Engine(180, 60, 900)), (60_000, 45_000), (0.01, 0.01), held={SAFE: 8})
    assert RISKY in bought(moves)
    assert not bought(stays)


def test_a_pool_that_is_worse_by_more_than_a_move_costs_is_left_when_others_are_ready() -> None:
    same = decide(replace(JOB, cap=1.0), (50_200, 50_000), (0.01, 0.01), held={SAFE: 8})
    assert not same.actions
    move = decide(replace(JOB, cap=1.0), (90_000, 50_000), (0.01, 0.01), held={SAFE: 8})
    assert first(move) == RISKY
    assert released(move) == 0  # the others are not there yet
    assert "32 leave (c5.xlarge@us-east-1a" in move.reason
    both = decide(replace(JOB, cap=1.0), (90_000, 50_000), (0.01, 0.01), held={SAFE: 8, RISKY: 8})
    assert released(both) == 8


def test_a_warned_machine_is_replaced_ahead() -> None:
    job = replace(JOB, cap=1.0)
    decision = decide(job, held={SAFE: 8}, warned=frozenset({3}))
    assert bought(decision)[SAFE] == 4
    assert released(decision) == 0
    assert decision.fill == 36
    assert decision.wake_on_notice
    assert released(decide(job, held={SAFE: 9}, warned=frozenset({3}))) == 1


def test_a_deadline_buys_on_demand_in_time_and_gives_it_back() -> None:
    tight = replace(JOB, cap=1.0, deadline=1.1)
    assert any(isinstance(a, RequestOnDemand) for a in decide(tight).actions)
    assert not any(isinstance(a, RequestOnDemand) for a in decide(replace(tight, deadline=3.0)).actions)
    ready = decide(replace(tight, deadline=3.0), held={SAFE: 8}, on_demand=2)
    assert released(ready) == 2


def test_work_that_would_wait_costs_what_on_demand_machines_beyond_the_size_really_do() -> None:
    # 32 vCPUs more at phi .6 cost .1 / 4 / .6 = .042 $ per work. On demand at the cap it is .05 $ / (51.2 / 64 of a
    # vCPU) = .0625 $, by a chance of 1 / (1 + 3.5 h / 10 h) = .046 $: so they pay. With whole vCPUs it would be .037 $.
    job = replace(JOB, cap=2.0, phi=0.6, deadline=1.0)
    assert bought(decide(job, prices=(100_000, 190_000), now_s=0))[SAFE] == 64
    assert bought(decide(job, prices=(120_000, 190_000), now_s=0))[SAFE] == 32


def test_close_to_the_deadline_nothing_may_stop_the_job() -> None:
    decision = decide(replace(JOB, cap=1.0, deadline=1.2), held={SAFE: 8}, now_s=2 * 3600 + 60)
    assert "on-demand machines alone" in decision.reason
    assert released(decision) == 8


def dips(hours: int, every_h: float, from_h: float, then_every_h: float) -> list[int]:
    """16 nodes; for a tick now and then, 4."""
    counts, at_h = [16] * (hours * 12), 0.0
    while (at_h := at_h + (every_h if at_h < from_h else then_every_h)) < hours - 1:
        counts[int(at_h * 12)] = 4
    return counts


def held_over_time(ledger: Ledger) -> list[tuple[int, dict[str, int]]]:
    numbers: dict[int, str] = {}
    story = []
    for entry in ledger.entries:
        if entry.kind is EntryKind.GRANT and entry.market is not None and entry.allocation is not None:
            numbers[entry.allocation] = entry.market.zone
        elif entry.kind in ENDINGS and entry.allocation is not None:
            del numbers[entry.allocation]
        else:
            continue
        zones = list(numbers.values())
        story.append((entry.at_s, {zone: zones.count(zone) for zone in ("a", "b")}))
    return story


def test_a_pool_whose_hazard_jumps_tenfold_is_left_within_half_an_hour_and_staying_is_dearer() -> None:
    jump_h, start_s = 30, 26 * 3600
    a, b = pool("a", dips(80, 2.5, jump_h, 0.25)), pool("b", dips(80, 4.0, 99, 4.0))
    cost = {}
    for traces in ((a, b), (a,)):
        setting = setting_of(list(traces), deadline=3.0)
        setting = setting.with_job(replace(setting.job, hours=8.0))
        outcome, ledger = run(setting, "expected_cost", start_s)
        cost[len(traces)] = outcome.micro_usd
        if len(traces) == 2:
            story = held_over_time(ledger)
            before = [held for at_s, held in story if at_s < jump_h * 3600]
            assert max(held["a"] for held in before) > 0
            after = [held for at_s, held in story if at_s <= jump_h * 3600 + 1800][-1]
            assert after["a"] <= 4  # a dip leaves four: those are not in danger
    assert cost[2] < 0.97 * cost[1]


@given(st.integers(0, 10**6), st.sampled_from([1.25, 1.5, 3.0]), st.integers(0, 200))
@settings(deadline=None, derandomize=True, max_examples=15)
def test_the_deadline_is_kept_and_the_bill_is_right(seed: int, deadline: float, tick: int) -> None:
    traces = [made_trace(name, 16, 100, 1.5, 1.5, seed) for name in ("a", "b")]
    setting = setting_of(traces, deadline=deadline)
    outcome, ledger = run(setting, "expected_cost", tick * TICK)
    assert outcome.finished
    assert outcome.end_s - tick * TICK <= deadline * 2 * 3600
    assert rebill(ledger, setting.history).differences == ()


@pytest.mark.parametrize("counts", [[0], [16, 3]], ids=["empty", "flickering"])
def test_the_deadline_is_kept_where_joining_stops_the_job_for_long(counts: list[int]) -> None:
    """Buying on demand stops all machines, too: late as it was, the job ended after its deadline."""
    setting = setting_of([pool("a", counts * (1000 // len(counts)))], deadline=1.7)
    slow = replace(setting.job.engine, sigma_s=1200)
    setting = setting.with_job(replace(setting.job, engine=slow))
    outcome, _ = run(setting, "expected_cost", 24 * 3600)
    assert outcome.finished and outcome.end_s - 24 * 3600 <= 1.7 * 2 * 3600
