"""Decisions and their reasons, on views made by hand; the registry; a user's own policy."""

import math
from dataclasses import replace
from itertools import chain
from types import NoneType

import numpy as np
import pytest

from bidbrain.accounts.ledger import lines_of
from bidbrain.accounts.rebill import rebill
from bidbrain.history.prices import Market
from bidbrain.policy.answer import PolicyError
from bidbrain.policy.base import (
    Action,
    Decision,
    Holding,
    Keep,
    LetGo,
    MarketView,
    Offer,
    Phase,
    Request,
    RequestOnDemand,
)
from bidbrain.policy.proteus import Proteus
from bidbrain.policy.registry import SCHEMES, UnknownSchemeError, find_scheme, young
from bidbrain.policy.renewal import Renewal
from bidbrain.policy.standard import OnDemand, Standard
from bidbrain.risk.eviction import Outlook, mean_time_to_eviction_s
from bidbrain.simulate.simulator import simulate
from tests.bidbrain.makers import EVALUATE, HOUR, history_of, make_setting

A, B = Market("c4.xlarge", "us-east-1a"), Market("c4.2xlarge", "us-east-1a")
START = EVALUATE.start_s


class Undecided:
    """A policy that forgets to return its decision."""

    def __init__(self, setting, start_s: int) -> None:
        pass

    def decide(self, now_s: int, view: MarketView) -> None:
        return None


def test_a_policy_that_returns_none_is_named(setting) -> None:
    with pytest.raises(PolicyError, match=r"decide\(\) of the policy returned NoneType, expected a Decision"):
        simulate(setting, "undecided", Undecided(setting, START), START, False)


class Fixed:
    """An eviction model that says the same for every delta of a market."""

    def __init__(self, beta: dict[Market, float]) -> None:
        self._beta = beta

    def outlook(self, market: Market, bid_delta: int, now, minutes: int) -> Outlook:
        beta = self._beta[market]
        held = (1 - beta / 2) * 60 * minutes
        return Outlook(beta, 30 * minutes, held, max(0.0, held - 120))


def offers(a: int, b: int) -> tuple[Offer, ...]:
    return (Offer(A, a, a, 209_000, 4, 4.0), Offer(B, b, b, 419_000, 8, 8.0))


def held(number: int, market: Market, price: int, start_s: int, vcpus: int = 256) -> Holding:
    return Holding(number, market, vcpus, price + 100, Phase.HELD, start_s, start_s, price)


def test_on_demand_buys_once(setting) -> None:
    policy = OnDemand(setting, START)
    view = MarketView(offers(1, 1), (), setting.job)
    assert policy.decide(START, view).actions == (RequestOnDemand("c4.xlarge", 512),)
    assert policy.decide(START, replace(view, holdings=(held(0, A, 1, START),))).actions == ()


def test_standard_takes_the_least_price_per_vcpu(setting) -> None:
    policy = Standard(setting, START)
    found = policy.decide(START, MarketView(offers(30_000, 58_000), (), setting.job))
    assert found.actions == (Request(B, 512, 419_000),)
    assert "least price per vCPU" in found.reason


def test_standard_waits_while_every_market_is_above_on_demand(setting) -> None:
    found = Standard(setting, START).decide(START, MarketView(offers(209_001, 419_001), (), setting.job))
    assert found.actions == ()
    assert found.wake_on_market
    assert "no market" in found.reason


def test_proteus_requests_what_lowers_cost_per_work(setting) -> None:
    policy = Proteus(setting, START, Fixed({A: 0.0, B: 0.0}))
    found = policy.decide(START, MarketView(offers(30_000, 50_000), (), setting.job))
    assert found.actions == (Request(B, 256, 50_000 + 100),)
    assert "c4.2xlarge" in found.reason
    assert found.wake_s == START + 120


def test_proteus_does_not_add_what_raises_cost_per_work(setting) -> None:
    policy = Proteus(setting, START, Fixed({A: 0.0, B: 0.0}))
    view = MarketView(offers(200_000, 400_000), (held(0, A, 20_000, START),), setting.job)
    found = policy.decide(START + 240, view)
    assert found.actions == ()
    assert "no request lowers E" in found.reason


def test_proteus_fills_up_to_the_cap_and_sleeps_then(setting) -> None:
    policy = Proteus(setting, START, Fixed({A: 0.0, B: 0.0}))
    full = tuple(held(i, A, 20_000, START) for i in range(3))
    found = policy.decide(START + 240, MarketView(offers(20_000, 40_000), full, setting.job))
    assert found.actions == ()
    assert "cap" in found.reason
    assert found.wake_s == START + HOUR - 60


@pytest.mark.parametrize(("price", "action"), [(20_000, Keep(0)), (209_000, LetGo(0))])
def test_proteus_renews_or_lets_go_before_the_hour_ends(setting, price: int, action) -> None:
    policy = Proteus(setting, START, Fixed({A: 0.0, B: 0.0}))
    own = (held(0, A, 20_000, START), held(1, B, 20_000, START + 600))
    found = policy.decide(START + HOUR - 60, MarketView(offers(price, 400_000), own, setting.job))
    assert action in found.actions
    assert ("renew 0" if isinstance(action, Keep) else "let 0 go") in found.reason


def test_renewal_fills_both_slots_with_the_best_bid(setting) -> None:
    policy = Renewal(setting, START, Fixed({A: 0.9, B: 0.0}))
    found = policy.decide(START, MarketView(offers(30_000, 58_000), (), setting.job))
    # Nine of ten hours in A are refunded: that is worth more than a lower price.
    assert found.actions == (Request(A, 384, 30_100),) * 2
    assert "index" in found.reason


@pytest.mark.parametrize(("price", "kept"), [(30_000, True), (150_000, False)])
def test_renewal_replaces_what_a_fresh_bid_beats(setting, price: int, kept: bool) -> None:
    policy = Renewal(setting, START, Fixed({A: 0.0, B: 0.0}))
    own = (held(0, A, 30_000, START, 384), held(1, A, 30_000, START + 900, 384))
    found = policy.decide(START + HOUR - 120, MarketView(offers(price, 80_000), own, setting.job))
    assert found.actions == ((Keep(0),) if kept else (LetGo(0), Request(B, 384, 80_100)))


def test_youngs_interval_is_longer_where_evictions_are_rarer(setting) -> None:
    engine = young(setting)
    assert engine.checkpoint_s > 720
    assert engine.overhead < 0.17


def test_between_two_of_youngs_checkpoints_the_job_computes_for_his_interval(setting) -> None:
    """A checkpoint comes, and work falls back to it, once for each time that one is written."""
    engine, write_s = young(setting), 0.17 * 720
    assert engine.checkpoint_s * engine.overhead == pytest.approx(write_s)
    times = [
        mean_time_to_eviction_s(setting.history, each.market, each.on_demand, setting.train)
        for each in setting.listings
    ]
    interval_s = math.sqrt(2 * write_s * sum(times) / len(times))
    assert engine.checkpoint_s * (1 - engine.overhead) == pytest.approx(interval_s, abs=1)


def test_unknown_schemes_say_what_there_is() -> None:
    with pytest.raises(UnknownSchemeError, match="there are on_demand, standard_checkpoint"):
        find_scheme("nothing")
    with pytest.raises(UnknownSchemeError, match="cannot be loaded"):
        find_scheme("no.such.module:Policy")
    with pytest.raises(UnknownSchemeError, match="has no class Nothing"):
        find_scheme("bidbrain.policy.standard:Nothing")


class OneMarket:
    """A user's own policy: all vCPUs in the first market, at twice its price, for as long as it lasts."""

    def __init__(self, setting, start_s: int) -> None:
        pass

    def decide(self, now_s: int, view: MarketView) -> Decision:
        if view.holdings or not view.offers:
            return Decision((), "nothing to do", wake_on_market=not view.offers)
        offer = view.offers[0]
        return Decision((Request(offer.market, view.job.vcpus, 2 * offer.price),), "the first market")


def test_a_users_own_policy_runs(setting) -> None:
    scheme = find_scheme("tests.bidbrain.policy.test_policies:OneMarket")
    outcome, ledger = simulate(setting, scheme.name, scheme.make(setting, START), START, scheme.reliable)
    assert outcome.finished
    assert ledger.micro_usd == outcome.micro_usd
    assert {entry.reason for entry in ledger.entries if entry.reason} == {"the first market"}


class Wrong(OneMarket):
    def decide(self, now_s: int, view: MarketView) -> Decision:
        return Decision((Request(Market("x", "y"), 4, 1),), "a market that is not there")


def test_a_policy_that_asks_for_what_cannot_be_is_named(setting) -> None:
    with pytest.raises(PolicyError, match="x@y"):
        simulate(setting, "wrong", Wrong(setting, START), START, True)


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (Request(A, 4, 0), "bids 0 micro-dollars for c4.xlarge@us-east-1a"),
        (Request(A, 4, -5), "bids -5 micro-dollars"),
        (RequestOnDemand("c4.xlarge", 0), "requests 0 vCPUs on demand"),
        (RequestOnDemand("c4.xlarge", -4), "requests -4 vCPUs on demand"),
        (RequestOnDemand("c4.2xlarge", 4), "requests c4.2xlarge on demand, expected c4.xlarge, the type of"),
    ],
)
def test_a_policy_that_asks_for_nothing_is_named(setting, action: Action, sentence: str) -> None:
    class Nothing(OneMarket):
        def decide(self, now_s: int, view: MarketView) -> Decision:
            return Decision((action,), "for nothing")

    with pytest.raises(PolicyError, match=sentence):
        simulate(setting, "nothing", Nothing(setting, START), START, True)


@pytest.mark.parametrize("number", [float, np.int64, np.float64])
def test_figures_that_a_policy_computes_are_whole_numbers_in_its_ledger(setting, number) -> None:
    """1.5 * price, or a figure of numpy: a ledger that holds one cannot be written, or not be read any more."""

    class Computed(OneMarket):
        def decide(self, now_s: int, view: MarketView) -> Decision:
            if view.holdings:
                return Decision((), "all is held", number(now_s + 600))
            offer = view.offers[0]
            request = Request(offer.market, number(view.job.vcpus / 2), number(1.5 * offer.price + 0.5))
            return Decision([request, request], "computed", number(now_s + 600), fill=number(view.job.vcpus))

    outcome, ledger = simulate(setting, "computed", Computed(setting, START), START, True)
    assert outcome.finished
    figures = [
        (entry.at_s, entry.vcpus, entry.price, entry.bid, entry.micro_usd, entry.done_vcpu_s)
        for entry in ledger.entries
    ]
    assert {type(each) for each in chain(*figures)} == {int, NoneType}
    assert len(list(lines_of(ledger))) == len(figures) + 1
    assert rebill(ledger, setting.history).differences == ()


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (
            Decision(Request(A, 4, 9), "no comma"),
            r"decision are a Request, expected a tuple of actions: \(action,\)",
        ),
        (
            Decision(("buy",), "a word"),
            "an action of the policy is a str, expected a Request, RequestOnDemand",
        ),
        (Decision((Request,), "a class"), "an action of the policy is a type, expected a Request"),
        (Decision((Request(A, 4.5, 9),), ""), "requests 4.5 vCPUs of c4.xlarge@us-east-1a, expected a whole"),
        (
            Decision((Request(A, 4, None),), ""),
            "bids None micro-dollars for c4.xlarge@us-east-1a, expected a whole",
        ),
        (Decision((Request(A, 4, 9, 0.5),), ""), "makes 0.5 requests, expected a whole number"),
        (
            Decision((RequestOnDemand("c4.xlarge", 4.5),), ""),
            "requests 4.5 vCPUs on demand, expected a whole",
        ),
        (Decision((), "", float("nan")), "asks to be woken at nan, expected a whole number"),
        (Decision((), "", fill=float("inf")), "fills up to inf vCPUs, expected a whole number"),
    ],
)
def test_a_policy_that_answers_what_is_no_decision_is_named(setting, answer, sentence: str) -> None:
    class Answers(OneMarket):
        def decide(self, now_s: int, view: MarketView) -> Decision:
            return answer

    with pytest.raises(PolicyError, match=sentence):
        simulate(setting, "answers", Answers(setting, START), START, True)


def test_machines_on_demand_have_no_hour_to_go_with(setting) -> None:
    """They stayed until the job's end, and were paid."""

    class Reluctant(OneMarket):
        def decide(self, now_s: int, view: MarketView) -> Decision:
            if view.holdings:
                return Decision((LetGo(view.holdings[0].number),), "enough")
            return Decision((RequestOnDemand("c4.xlarge", 4),), "one", now_s + 60)

    with pytest.raises(PolicyError, match="lets allocation 0 go with its hour, but it is on demand"):
        simulate(setting, "reluctant", Reluctant(setting, START), START, True)


def test_what_was_let_go_cannot_be_kept(setting) -> None:
    """The ledger said "keep", and the machines went with their hour all the same."""

    class Wavering(OneMarket):
        def decide(self, now_s: int, view: MarketView) -> Decision:
            if not view.holdings:
                return Decision((Request(A, 4, 10**9),), "one", now_s + 600)
            if view.holdings[0].phase is Phase.HELD:
                return Decision((LetGo(0),), "enough", now_s + 600)
            return Decision((Keep(0),), "or not")

    with pytest.raises(PolicyError, match="keeps allocation 0, but it has let it go with its hour"):
        simulate(setting, "wavering", Wavering(setting, START), START, True)


def test_a_market_that_has_no_price_yet_is_named(setting) -> None:
    history = history_of({str(A): [(START, 9)], str(B): [(START + HOUR, 9)]}, START + 9 * HOUR)

    class Early(OneMarket):
        def decide(self, now_s: int, view: MarketView) -> Decision:
            return Decision((Request(B, 8, 99),), "not yet")

    own = make_setting(history)
    with pytest.raises(
        PolicyError, match=r"requests c4\.2xlarge@us-east-1a, which has no price yet at 2016-03-20"
    ):
        simulate(own, "early", Early(own, START), START, True)


class Forgetful(OneMarket):
    def decide(self, now_s: int, view: MarketView) -> Decision:
        return Decision((LetGo(7),), "an allocation that was never held")


def test_a_policy_that_lets_go_what_it_does_not_hold_is_named(setting) -> None:
    with pytest.raises(PolicyError, match="allocation 7, which is not held"):
        simulate(setting, "forgetful", Forgetful(setting, START), START, True)


@pytest.mark.parametrize("name", [name for name, scheme in SCHEMES.items() if scheme.compiled])
def test_schemes_carry_their_engine(setting, name: str) -> None:
    own = SCHEMES[name].setting(setting)
    assert (own.job.engine.checkpoint_s > 0) == (name in ("standard_checkpoint", "standard_young"))
    assert own.job.cap == (1.5 if SCHEMES[name].elastic else 1.0)
