"""The policy: what it plans from what it was told, and what it leaves as it was."""

from __future__ import annotations

import random

import pytest

from straggler.lbbsp.policy import LbBsp
from straggler.speed.predictors import Ema, Memoryless, RestartingEma


def test_shares_follow_the_speeds_and_somebody_new_is_as_fast_as_the_mean() -> None:
    policy: LbBsp[int] = LbBsp(60, Memoryless)
    assert policy.plan((0, 1, 2)).units == (20, 20, 20)
    policy.observe(0, 20, 1.0)
    policy.observe(1, 20, 2.0)
    plan = policy.plan((0, 1, 2))  # the third: as fast as the mean of the others
    assert plan.units == (27, 13, 20)
    assert plan.predicted_s == pytest.approx(27 / 20)
    assert "2 of 3" in plan.reason
    policy.forget(1)
    assert policy.plan((0, 2)).units == (30, 30)


def test_nothing_moves_from_home_before_anybody_is_measured() -> None:
    policy = LbBsp(64, RestartingEma, home={"a": 10, "b": 54}, hold=0.01)
    plan = policy.plan(("a", "b"))
    assert plan.units == (10, 54)
    assert plan.reason == "no worker is measured yet"


def test_a_worker_that_is_not_measured_has_the_speed_of_its_units_at_home() -> None:
    policy = LbBsp(60, Memoryless, home={"a": 10, "b": 20, "c": 30})
    policy.observe("a", 10, 1.0)
    policy.observe("b", 20, 2.0)  # as fast as a: home has taken it for twice as fast
    assert policy.plan(("a", "b", "c")).units == (14, 14, 32)  # 10, 10 and .75 x 30 = 22.5 units/s


def test_no_worker_has_nothing_at_home() -> None:
    with pytest.raises(ValueError, match="worker b: 0 units at home; expected at least 1"):
        LbBsp(60, Memoryless, home={"a": 60, "b": 0})


def test_the_time_of_messages_counts() -> None:
    policy: LbBsp[str] = LbBsp(100, Memoryless)
    for far_s in (0.4, 0.4, 7.0):  # one message that waited for something else
        policy.observe("near", 50, 1.0, other_s=0.0)
        policy.observe("far", 50, 1.0, other_s=far_s)
    plan = policy.plan(("near", "far"))
    assert plan.units == (60, 40)
    assert plan.predicted_s == pytest.approx(1.2)


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.15])
def test_noise_moves_next_to_nothing(noise: float) -> None:
    """Among equal workers the clocks take as long as with even shares."""
    rng = random.Random(f"noise {noise}")
    workers = tuple("abcd")
    policy = LbBsp(256, RestartingEma, home=dict.fromkeys(workers, 64), hold=0.01)
    took_s = even_s = 0.0
    for _ in range(1000):
        unit_s = {worker: 0.01 * rng.lognormvariate(0.0, noise) for worker in workers}
        units = dict(zip(workers, policy.plan(workers).units, strict=True))
        took_s += max(units[worker] * unit_s[worker] for worker in workers)
        even_s += max(64 * unit_s[worker] for worker in workers)
        for worker in workers:
            policy.observe(worker, units[worker], units[worker] * unit_s[worker])
    assert took_s <= 1.01 * even_s


def test_it_settles_in_three_clocks_after_a_change_and_wastes_little_before() -> None:
    """Speeds 1/3, 2/3, 1, 1; later the last one falls to 1/2."""
    rng = random.Random("settles")
    workers = tuple("abcd")
    speeds = {"a": 1 / 3, "b": 2 / 3, "c": 1.0, "d": 1.0}
    policy = LbBsp(256, RestartingEma, home=dict.fromkeys(workers, 64), hold=0.01)
    waited = []
    for clock in range(60):
        speeds["d"] = 1.0 if clock < 30 else 0.5
        units = policy.plan(workers).units
        took_s = {
            w: n / speeds[w] * rng.lognormvariate(0.0, 0.005) for w, n in zip(workers, units, strict=True)
        }
        waited.append(1 - sum(took_s.values()) / 4 / max(took_s.values()))
        for worker, count in zip(workers, units, strict=True):
            policy.observe(worker, count, took_s[worker])
    assert waited[0] > 0.4
    assert max(waited[1:30]) < 0.05
    assert waited[30] > 0.2
    assert max(waited[33:]) < 0.05


def test_a_hold_says_what_it_has_refused() -> None:
    policy = LbBsp(20, Ema, home={"a": 10, "b": 10}, hold=0.2)
    policy.observe("a", 10, 1.0)
    policy.observe("b", 10, 1.2)
    plan = policy.plan(("a", "b"))
    assert plan.units == (10, 10)
    assert "another deal would save 9.1% at most, less than 50.0%" in plan.reason


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LbBsp(0, Ema), "units is 0"),
        (lambda: LbBsp(5, Ema, hold=1.0), "hold is 1.0"),
        (lambda: LbBsp(5, Ema).observe(0, 0, 1.0), "0 units in 1.0 s"),
        (lambda: LbBsp(5, Ema).observe(0, 1, float("nan")), "1 units in nan s"),
        (lambda: LbBsp(5, Ema).observe(0, 1, 1.0, other_s=-1.0), "-1.0 s for messages"),
    ],
)
def test_bad_numbers_are_refused_in_a_sentence(make, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
