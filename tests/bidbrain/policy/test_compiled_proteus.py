"""The compiled search decides as the plain policy does, and fast."""

from __future__ import annotations

import time

import pytest

from bidbrain.history.generate import Character, generate
from bidbrain.history.prices import History, Market
from bidbrain.instants import Interval
from bidbrain.live.decide import Measurements, decide, view_of
from bidbrain.live.guards import Guards
from bidbrain.live.journal import Opened
from bidbrain.live.replay import InstantLauncher, Replay
from bidbrain.live.state import JobState
from bidbrain.policy.compiled_proteus import CompiledProteus
from bidbrain.policy.proteus import Proteus
from bidbrain.setting import Bidding, Engine, Listing, Reliable, Setting, Workload
from bidbrain.simulate.simulator import simulate
from tests.bidbrain.makers import EVALUATE, make_setting


@pytest.mark.parametrize("engine", [Engine(), Engine(300, 45, 20)])
def test_the_same_jobs_line_by_line(turbulent: History, engine: Engine) -> None:
    job = Workload(vcpus=300, hours=3.0, cap=1.3, phi=0.7, engine=engine)
    setting = make_setting(turbulent, job, Bidding(min_delta=500, slot_vcpus=100))
    lines = 0
    for number in range(4):
        start_s = EVALUATE.start_s + 50_021 * number
        plain = simulate(setting, "proteus", Proteus(setting, start_s), start_s, True)
        quick = simulate(setting, "proteus", CompiledProteus(setting, start_s), start_s, True)
        assert quick == plain
        lines += len(plain[1].entries)
    assert lines > 50


def test_a_decision_on_1000_offers_with_200_held() -> None:
    """Best of five."""
    window = Interval.parse("2016-03-18/2016-03-21")
    train = Interval.parse("2016-03-18/2016-03-20")
    kinds = [f"c4.{number}x" for number in range(100)]
    zones = [f"z{number}" for number in range(10)]
    history = generate([(kind, zone, 209_000) for kind in kinds for zone in zones], window, Character.CALM, 3)
    listings = tuple(Listing(market, 209_000, 4) for market in history.markets)
    assert len(listings) == 1000
    job = Workload(vcpus=1024, hours=2.0)
    setting = Setting(job, listings, history, train, Reliable("c4.0x", 12, 209_000, 4), 209_000)
    now_s = train.end_s + 7200
    state = JobState(setting, [Opened("job", "proteus", now_s)])
    for number in range(200):
        market = Market(kinds[number % 100], zones[number % 10])
        allocation = state.account.request(now_s - 60 * (number % 50 + 1), market, 4, 4, 800_000, now_s, "")
        state.account.grant(now_s - 60 * (number % 50 + 1), allocation, 30_000)
    policy = CompiledProteus(setting, now_s)
    quotes = Replay(setting, lambda: now_s, InstantLauncher()).quotes(now_s)
    assert len(quotes.offers) == 1000
    took_s = []
    for _ in range(5):
        start_s = time.thread_time()
        view = view_of(setting, state, quotes, Measurements(nu={"c4.0x": 3.9}), Guards(), 0.0)
        decided = decide(now_s, policy, view, state, quotes, setting, together=True)
        took_s.append(time.thread_time() - start_s)
    print(f"{1000 * min(took_s):.1f} ms; {decided.reason[:80]}")
    assert decided.steps
    assert min(took_s) < 0.05
