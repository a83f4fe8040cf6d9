"""The choice between static shares, shares by speed and help: what machines are like decides, not noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from straggler.lbbsp.auto import PAUSE, QUICK, WINDOW, AutoBalance
from straggler.lbbsp.policy import UnitPlan
from straggler.lbbsp.remedy import Choice, Remedy, divided_s, duration_s, helped_s

WORKERS = tuple("abcd")
HOME = dict.fromkeys(WORKERS, 64)
UNITS = 256
ALL = (Remedy.STATIC, Remedy.SHARES, Remedy.HELP)

Speeds = Callable[[int], Mapping[str, float]]  # of each clock


@dataclass
class Trained:
    """Clocks that a policy has planned."""

    policy: AutoBalance[str]
    chosen: list[tuple[int, Choice]] = field(default_factory=list)
    plans: list[UnitPlan[str]] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)

    @property
    def remedies(self) -> list[Remedy]:
        return [choice.remedy for _, choice in self.chosen]


def train(policy: AutoBalance[str], clocks: int, speeds: Speeds, helped: float = 1.1) -> Trained:
    """Clocks of so many seconds as the workers need; with help `helped` times as long as perfectly divided."""
    found = Trained(policy)
    for clock in range(clocks):
        plan = policy.plan(WORKERS)
        assert sum(plan.units) == UNITS
        assert min(plan.units) >= 1
        if plan.chosen is not None:
            found.chosen.append((clock, plan.chosen))
        now = speeds(clock)
        units_s = [n / now[w] for w, n in zip(WORKERS, plan.units, strict=True)]
        took_s = helped * UNITS / sum(now.values()) if plan.helps else max(units_s)
        for worker, units, seconds in zip(WORKERS, plan.units, units_s, strict=True):
            policy.observe(worker, units, seconds, other_s=0.0)
        policy.clock_took(took_s)
        found.plans.append(plan)
        found.took_s.append(took_s)
    return found


def noisy(noise: float, name: str) -> Speeds:
    rng = random.Random(f"{name} {noise}")
    return lambda clock: {worker: 100.0 * rng.lognormvariate(0.0, noise) for worker in WORKERS}


def of_a_third(clock: int) -> Mapping[str, float]:
    return {"a": 100 / 3, "b": 200 / 3, "c": 100.0, "d": 100.0}


def slow_by_turns(times: float, seed: int) -> Speeds:
    """In every clock one of them is so many times as slow: nobody knows which one is next."""
    rng = random.Random(seed)

    def speeds(clock: int) -> Mapping[str, float]:
        slow = rng.choice(WORKERS)
        return {w: 100.0 / (times if w == slow else rng.uniform(1.0, 1.05)) for w in WORKERS}

    return speeds


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05, 0.15])
def test_among_equal_workers_nothing_ever_moves_and_that_is_told_once(noise: float) -> None:
    trained = train(AutoBalance(UNITS, HOME), 500, noisy(noise, "equal"))
    assert {plan.units for plan in trained.plans} == {tuple(HOME.values())}
    assert trained.remedies == [Remedy.STATIC]
    clock, choice = trained.chosen[0]
    assert clock == WINDOW
    assert "s with static shares and " in choice.reason
    assert "s with shares by speed (the last 16 clocks)" in choice.reason


def test_workers_of_unlike_speed_get_shares_by_speed_after_a_few_clocks() -> None:
    trained = train(AutoBalance(UNITS, HOME, ALL), 40, of_a_third)
    assert trained.remedies == [Remedy.SHARES]
    assert trained.chosen[0][0] <= QUICK + 3
    assert trained.plans[-1].units == (28, 57, 86, 85)
    assert trained.took_s[-1] < 0.46 * trained.took_s[0]


def test_a_worker_that_becomes_slow_later_is_noticed_as_well() -> None:
    trained = train(AutoBalance(UNITS, HOME), 60, lambda clock: of_a_third(0) if clock >= 30 else HOME)
    assert trained.remedies == [Remedy.STATIC, Remedy.SHARES]
    assert 30 < trained.chosen[1][0] <= 38


def test_workers_that_are_slow_by_turns_help_each_other_if_they_may() -> None:
    alone = train(AutoBalance(UNITS, HOME), 100, slow_by_turns(3.0, 1))
    assert Remedy.SHARES not in alone.remedies
    helped = train(AutoBalance(UNITS, HOME, ALL), 100, slow_by_turns(3.0, 1))
    assert helped.remedies == [Remedy.HELP]
    assert [plan.helps for plan in helped.plans] == [False] * WINDOW + [True] * (100 - WINDOW)
    assert sum(helped.took_s) < 0.6 * sum(alone.took_s)


def test_help_that_is_no_help_is_given_up_for_good() -> None:
    trained = train(AutoBalance(UNITS, HOME, ALL), 200, slow_by_turns(3.0, 2), helped=3.0)
    assert trained.remedies[:2] == [Remedy.HELP, Remedy.STATIC]
    assert not any(plan.helps for plan in trained.plans[-100:])
    assert "with help" in trained.chosen[1][1].reason


def test_a_clock_that_not_all_have_measured_decides_nothing() -> None:
    policy = AutoBalance(UNITS, HOME)
    for _ in range(50):
        policy.plan(WORKERS)
        policy.observe("a", 64, 4.0)
        policy.observe("b", 64, 1.0)
    assert policy.plan(WORKERS).units == tuple(HOME.values())
    assert policy.remedy is Remedy.STATIC


def test_what_a_clock_takes_with_each_remedy() -> None:
    speeds, others_s = [1.0, 3.0], [0.0, 2.0]
    assert duration_s([6, 6], speeds, others_s) == 6.0
    assert divided_s(12, speeds, others_s) == 4.5  # 4.5 units, and 2.5 s of three units a second
    assert helped_s(12, speeds, others_s) == pytest.approx(1.12 * 4.5 + 1.0)


def test_shares_by_speed_that_do_not_pay_are_given_up_and_tried_again_ever_more_rarely() -> None:
    """The messages of the others wait for the computing of "a", which serves them: the more units it takes over for
    that reason, the longer they wait."""
    policy, took_s, chosen = AutoBalance(UNITS, HOME), [], []
    for clock in range(2000):
        plan = policy.plan(WORKERS)
        if plan.chosen is not None:
            chosen.append((clock, plan.chosen))
        units_s = {worker: units / 100.0 for worker, units in zip(WORKERS, plan.units, strict=True)}
        others_s = {worker: 0.0 if worker == "a" else 0.9 * units_s["a"] for worker in WORKERS}
        for worker, units in zip(WORKERS, plan.units, strict=True):
            policy.observe(worker, units, units_s[worker], other_s=others_s[worker])
        took_s.append(max(units_s[worker] + others_s[worker] for worker in WORKERS))
        policy.clock_took(took_s[-1])
    static_s = took_s[0]
    assert max(took_s) > 1.05 * static_s, "shares by speed are longer here"
    remedies = [choice.remedy for _, choice in chosen]
    assert remedies[:2] == [Remedy.SHARES, Remedy.STATIC]
    assert "s with static shares before" in chosen[1][1].reason
    begins = [clock for clock, choice in chosen if choice.remedy is Remedy.SHARES]
    pauses = [later - sooner for sooner, later in pairwise(begins)]
    assert pauses[0] >= PAUSE
    assert all(later > 1.5 * sooner for sooner, later in pairwise(pauses)), pauses
    assert sum(took_s) < 1.02 * static_s * len(took_s)


def test_shares_by_speed_go_on_where_all_workers_become_slower() -> None:
    def speeds(clock: int) -> Mapping[str, float]:
        return {w: speed / (3 if clock >= 100 else 1) for w, speed in of_a_third(clock).items()}

    trained = train(AutoBalance(UNITS, HOME), 300, speeds)
    assert trained.remedies == [Remedy.SHARES, Remedy.STATIC, Remedy.SHARES]
    (_, gave_up, again) = (clock for clock, _ in trained.chosen)
    assert 100 < gave_up <= 100 + WINDOW
    assert again - gave_up <= QUICK + 1
    assert trained.plans[-1].units == (28, 57, 86, 85)
