"""Budget, highest price and number of machines hold whatever the policy wants; notices; refusals of a bad start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st

from bidbrain.accounts.account import JobAccount
from bidbrain.accounts.ledger import EntryKind
from bidbrain.billing import RULES, Ending
from bidbrain.history.prices import History, Market
from bidbrain.live.cloud import UnknownOutcomeError
from bidbrain.live.decide import steps_of
from bidbrain.live.dry_run import BudgetError, dry_run
from bidbrain.live.guards import Guards, exposure, spent
from bidbrain.live.journal import Buy, Closing, Decided, Draining, Noticed, Opened, Ordered, Passed
from bidbrain.live.replay import MarketClock, Warnings
from bidbrain.live.service import Service
from bidbrain.policy.base import Decision, MarketView, Request, RequestOnDemand
from bidbrain.policy.registry import find_scheme
from bidbrain.setting import ON_DEMAND_ZONE, Setting, Workload
from tests.bidbrain.live.lone_cloud import BEGIN_S, ON_DEMAND, SMALL, SPOT, LoneJob
from tests.bidbrain.live.makers import LiveRig, Memory, plan_of, play
from tests.bidbrain.makers import EVALUATE, make_setting
from tests.thorough import examples

START_S = EVALUATE.start_s + 140_002
USD = 1_000_000


@pytest.fixture(scope="module")
def setting(turbulent: History) -> Setting:
    return make_setting(turbulent, Workload(hours=6.0))


@pytest.mark.parametrize("rules", ["hourly_2016", "per_second"])
@pytest.mark.parametrize("budget", [4, 9, 17])
def test_a_budget_is_never_passed(setting: Setting, rules: str, budget: int) -> None:
    ground, log = LiveRig(replace(setting, rules=rules), START_S), Memory()
    every_minute = ground.wait
    ground.wait = lambda until_s, market: every_minute(min(until_s, ground.at_s + 60), market)  # type: ignore[method-assign]
    closing, ledger = play(ground, find_scheme("proteus"), log, Guards(budget=budget * USD))
    assert closing.code == 3
    assert "budget" in closing.reason
    print(f"{rules}: budget {budget} $, spent {ledger.micro_usd / USD:.2f} $")
    assert 0.3 * budget * USD < ledger.micro_usd <= budget * USD
    draining = next(record for record in log.records if isinstance(record, Draining))
    assert not any(
        e.kind in (EntryKind.REQUEST, EntryKind.GRANT) for e in ledger.entries if e.at_s > draining.at_s
    )
    assert not ground.launcher.running


def spot_and_on_demand(now_s: int, view: MarketView) -> Decision:
    """As many of both as the limits allow, again and again."""
    actions = (Request(SMALL, 1, SPOT, 2), RequestOnDemand("c5.xlarge", 2)) if len(view.holdings) < 20 else ()
    return Decision(actions, "more", now_s + 300)


@given(
    budget=st.integers(600_000, 3_000_000),
    drain_s=st.sampled_from([0, 120, 900, 3600, 7200]),
    lost_from_s=st.none() | st.integers(0, 4000),
    poll_s=st.integers(5, 30),
)
@with_settings(deadline=None, derandomize=True, max_examples=examples(40))
def test_a_budget_is_never_passed_however_long_the_end_takes(
    budget: int, drain_s: int, lost_from_s: int | None, poll_s: int
) -> None:
    """With on-demand orders whose answer is lost, too: what they bought costs money that no account has. A service that
    looks every `poll_s` sees the budget reached, and the end of draining, so much late."""
    job = LoneJob(spot_and_on_demand, Guards(budget=budget), drain_s=drain_s)
    try:
        dry_run(job.plan, job.cloud, BEGIN_S)
    except BudgetError:
        assert budget < ON_DEMAND * (drain_s + 60) / 3600
        return
    job.cloud.is_answer_lost = True
    job.after(0)
    while job.service.state.closed is None:
        if lost_from_s is not None and job.at_s >= BEGIN_S + lost_from_s and not job.of(Closing):
            job.cloud.fails[ON_DEMAND_ZONE] = UnknownOutcomeError("answer lost")
        else:
            job.cloud.fails.clear()
        job.after(poll_s)
    assert job.engine.drain_by_s is not None
    assert 0.5 * budget * 3600 / (3600 + drain_s) <= job.cloud.paid() <= budget
    assert not job.cloud.running


def test_no_machine_beyond_the_number_and_no_price_beyond_the_limit(setting: Setting) -> None:
    limits = Guards(max_price=150_000, max_machines=40)
    ground, log = LiveRig(setting, START_S), Memory()
    most = 0

    def start(machine) -> None:
        nonlocal most
        ground.launcher.running.add(machine.instance_id)
        most = max(most, len(ground.launcher.running))

    ground.launcher.start = start  # type: ignore[method-assign]
    _, ledger = play(ground, find_scheme("proteus"), log, limits)
    assert 3 < most <= 40
    asked = [entry.vcpus for entry in ledger.entries if entry.kind is EntryKind.REQUEST]
    assert asked and max(size or 0 for size in asked) <= 37 * 8  # what fits beside 3 reliable machines
    assert any(isinstance(r, Passed) and "max_machines" in r.why for r in log.records)


def test_prices_above_the_limit_are_not_paid(setting: Setting) -> None:
    _, ledger = play(LiveRig(setting, START_S), find_scheme("proteus"), Memory(), Guards(max_price=60_000))
    paid = [e.price for e in ledger.entries if e.kind is EntryKind.GRANT and e.allocation != -1]
    assert paid and max(price or 0 for price in paid) <= 60_000
    assert max(e.bid or 0 for e in ledger.entries if e.kind is EntryKind.REQUEST) <= 60_000


def test_notices_come_before_evictions(setting: Setting) -> None:
    for share in (0.0, 1.0, 0.5):
        ground, log = LiveRig(setting, START_S, Warnings(silent_share=share, seed=4)), Memory()
        step = ground.wait
        ground.wait = lambda until_s, market, step=step, ground=ground: step(  # type: ignore[method-assign]
            min(until_s, ground.at_s + 10), market
        )
        play(ground, find_scheme("proteus"), log)
        noticed = [n for r in log.records if isinstance(r, Noticed) for n in r.notices]
        told = {
            n.instance_id: (r.at_s, n.deadline_s)
            for r in log.records
            if isinstance(r, Noticed)
            for n in r.notices
        }
        assert len(noticed) == len(told)  # each is written down once
        evicted = ground.replay.ended(tuple(told))
        if share == 1.0:
            assert not told
        else:
            assert told
        for fate in evicted:
            heard_s, deadline_s = told[fate.instance_id]
            assert fate.at_s in (deadline_s, min(fate.at_s, deadline_s))
            assert 100 <= deadline_s - heard_s <= 120 or heard_s < deadline_s


@given(
    rules=st.sampled_from(sorted(RULES)),
    held_s=st.integers(0, 3 * 3600),
    later_s=st.integers(0, 3 * 3600),
    price=st.integers(1, 10**6),
    vcpus=st.integers(1, 64),
)
@with_settings(deadline=None, derandomize=True, max_examples=examples(200))
def test_exposure_is_the_bill_of_who_terminates_then(
    rules: str, held_s: int, later_s: int, price: int, vcpus: int
) -> None:
    """At a price that stays at the bid, exposure is exact."""
    account = JobAccount(RULES[rules])

    def hold(until_s: int) -> None:
        (allocation,) = account.open
        while allocation.hour_start_s + 3600 < until_s:
            account.next_hour(allocation.hour_start_s + 3600, allocation, price)

    allocation = account.request(0, Market("a", "b"), vcpus, 4, price, 0, "")
    promised = exposure(account, 0, held_s + later_s)
    account.grant(0, allocation, price)
    hold(held_s)
    assert exposure(account, held_s, held_s + later_s) == promised
    hold(held_s + later_s)
    account.end(held_s + later_s, allocation, Ending.TERMINATED)
    assert spent(account) == promised


def test_machines_that_die_alone_are_bought_in_one_call(setting: Setting) -> None:
    one, two = setting.markets[0], setting.markets[2]
    requests = [Request(one, 8, 5), Request(one, 8, 5), Request(one, 4, 6), Request(two, 4, 5)]
    whole = steps_of(requests, setting, together=True)
    assert [step.parts for step in whole if isinstance(step, Buy)] == [1, 1, 1, 1]
    each = {market: setting.by_market[market].vcpus for market in (one, two)}
    alone = [step for step in steps_of(requests, setting, together=False) if isinstance(step, Buy)]
    assert [(step.vcpus, step.parts) for step in alone] == [
        (16, 16 // each[one]),
        (max(4, each[one]), max(1, 4 // each[one])),
        (max(4, each[two]), max(1, 4 // each[two])),
    ]


def test_market_time_runs_at_its_speed() -> None:
    wall = 100.0
    slept: list[float] = []
    clock = MarketClock(5000, 60.0, 0.5, lambda: wall, slept.append)
    assert clock.now_s() == 5000
    wall += 10.0
    assert clock.now_s() == 5600
    clock.wait(5612, False)
    clock.wait(9000, False)
    clock.wait(5000, False)
    assert slept == pytest.approx([0.2, 0.5, 0.0])


def test_a_service_that_is_told_to_stop_drains(setting: Setting, tmp_path: Path) -> None:
    ground, log = LiveRig(setting, START_S), Memory()
    service = Service(
        plan_of(setting, find_scheme("proteus"), START_S), ground.replay, ground.engine, ground, log
    )
    ground.state = service.state
    step = ground.wait

    def wait(until_s: int, market: bool) -> None:
        step(until_s, market)
        if ground.at_s > START_S + 1800:
            service.stop("stopped by its user")

    ground.wait = wait  # type: ignore[method-assign]
    closing = service.run()
    assert (closing.finished, closing.reason, closing.code) == (False, "stopped by its user", 0)
    assert ground.engine.draining
    assert not ground.launcher.running


def test_a_dry_run_shows_the_first_decision_and_buys_nothing(setting: Setting) -> None:
    ground = LiveRig(setting, START_S)
    shown = dry_run(plan_of(setting, find_scheme("proteus"), START_S), ground.replay, START_S)
    assert not ground.replay.purchases
    log = Memory()
    _, ledger = play(ground, find_scheme("proteus"), log)
    first = next(record for record in log.records if isinstance(record, Decided))
    assert shown.decided.steps == first.steps
    charges = [e.micro_usd or 0 for e in ledger.entries if e.kind is EntryKind.CHARGE and e.at_s == START_S]
    assert shown.first_hour == setting.reliable.hourly + sum(charges[:1])
    assert shown.per_vcpu_hour == shown.first_hour / shown.vcpus


GUARDS = (
    Guards(max_machines=3),
    Guards(max_machines=4),
    Guards(max_machines=7),
    Guards(max_machines=40, max_price=150_000),
    Guards(budget=700_000),
    Guards(budget=1_500_000),
    Guards(budget=9_000_000),
)


@pytest.mark.parametrize(
    ("scheme", "guards"),
    [
        (scheme, guards)
        for scheme in ("proteus", "renewal", "standard_agileml", "on_demand")
        for guards in GUARDS
        if scheme != "on_demand" or guards.max_price is None  # test_highest_price has those that are refused
    ],
)
def test_a_dry_run_shows_what_the_service_does_within_its_limits(
    setting: Setting, scheme: str, guards: Guards
) -> None:
    own, log = find_scheme(scheme), Memory([Opened("job", scheme, START_S)])
    ground = LiveRig(setting, START_S)
    shown = dry_run(plan_of(setting, own, START_S, guards), ground.replay, START_S)
    service = Service(plan_of(setting, own, START_S, guards), ground.replay, ground.engine, ground, log)
    service.step()
    first = next(number for number, record in enumerate(log.records) if isinstance(record, Decided))
    did = [
        (r.vcpus, r.bid) if isinstance(r, Ordered) else r.why
        for r in log.records[first:]
        if isinstance(r, Ordered | Passed)
    ]
    assert [(each.vcpus, each.bid) if each.vcpus else each.why for each in shown.purchases] == did
    for each in shown.purchases:
        assert bool(each.why) == (each.vcpus < each.step.vcpus)
        assert each.by_guard == ("guard" in each.why)


def test_a_budget_below_the_first_hour_is_one_sentence(setting: Setting) -> None:
    plan = plan_of(setting, find_scheme("proteus"), START_S, Guards(budget=100_000))
    with pytest.raises(BudgetError, match=r"budget_usd: found 0\.100000 \$, expected at least 0\.627000"):
        dry_run(plan, LiveRig(setting, START_S).replay, START_S)
