"""Shares by speed where more parts of units are more messages: never later than without regard to them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from straggler.coverage import count_subtrees, span
from straggler.lbbsp.messages import best_units, messages_s, one_each
from straggler.lbbsp.policy import LbBsp
from straggler.lbbsp.remedy import duration_s
from straggler.lbbsp.sizes import cpu_batch_sizes, gpu_batch_sizes
from straggler.lbbsp.unit_sets import units_of_counts
from straggler.speed.predictors import RestartingEma
from tests.thorough import examples

EXAMPLES = settings(deadline=None, derandomize=True, max_examples=examples(60))
SPEEDS = st.lists(st.floats(0.2, 5.0), min_size=2, max_size=6)
WORKERS = tuple("abcd")


class Home:
    """`workers` workers with equal neighbouring ranges of 2^k units at home."""

    def __init__(self, workers: int, units: int) -> None:
        edges = [units * each // workers for each in range(workers + 1)]
        self.home = [(each, span(edges[each], edges[each + 1])) for each in range(workers)]

    def sums_of(self, units: tuple[int, ...]) -> list[int]:
        dealt = units_of_counts(self.home, dict(enumerate(units)))
        return [count_subtrees(dealt[each]) for each in range(len(units))]


def deal_in_steps(total: int, speeds: list[float], transfers_s: list[float], step: int) -> tuple[int, ...]:
    """The best one if each sent one sum."""
    if not any(transfers_s):
        return tuple(cpu_batch_sizes(speeds, total, 1, unit=step).tolist())
    nothing = [0] * len(speeds)
    others_s, slopes_s = [2 * each for each in transfers_s], [1.0 / each for each in speeds]
    most = [total] * len(speeds)
    return tuple(gpu_batch_sizes(slopes_s, nothing, others_s, nothing, most, total, 1, unit=step).tolist())


@EXAMPLES
@given(
    SPEEDS,
    st.integers(3, 9),
    st.lists(st.sampled_from([0.0, 1e-6, 0.01, 0.1, 0.5, 2.0]), min_size=6, max_size=6),
)
def test_no_deal_in_steps_ends_earlier(speeds: list[float], log_units: int, transfers_s: list[float]) -> None:
    total, transfers_s = 1 << log_units, transfers_s[: len(speeds)]
    sums_of = Home(len(speeds), total).sums_of

    def took_s(units: tuple[int, ...]) -> float:
        return duration_s(units, speeds, messages_s(units, transfers_s, sums_of))

    units, step = best_units(total, speeds, transfers_s, sums_of, 1)
    assert sum(units) == total and min(units) >= 1 and not any(each % step for each in units)
    without, _ = best_units(total, speeds, transfers_s, one_each, 1)
    assert took_s(units) <= took_s(without)
    for log_step in range(log_units + 1):
        if len(speeds) << log_step <= total:
            assert took_s(units) <= took_s(deal_in_steps(total, speeds, transfers_s, 1 << log_step))


@EXAMPLES
@given(SPEEDS, st.integers(3, 9))
def test_messages_that_take_no_time_change_no_share(speeds: list[float], log_units: int) -> None:
    total = 1 << log_units
    units, _ = best_units(total, speeds, [0.0] * len(speeds), Home(len(speeds), total).sums_of, 1)
    even = cpu_batch_sizes(speeds, total, 1).tolist()
    nothing = [0.0] * len(speeds)
    assert duration_s(units, speeds, nothing) == duration_s(even, speeds, nothing)


def clocks_s(units: int, sum_s: float, *, knows_sums: bool, seed: int) -> float:
    """The seconds of a late clock of four workers of drawn speeds whose transfers take `sum_s` each."""
    rng, home = random.Random(f"sums {seed}"), Home(4, units)
    speeds = [units / 4 * rng.uniform(0.4, 1.0) for _ in WORKERS]
    even = dict.fromkeys(WORKERS, units // 4)
    sums_of = home.sums_of if knows_sums else None
    policy = LbBsp(units, RestartingEma, home=even, hold=0.01, sums_of=sums_of)
    took_s = 0.0
    for _ in range(12):
        plan = policy.plan(WORKERS).units
        took_s = 0.0
        for worker, own, speed, sums in zip(WORKERS, plan, speeds, home.sums_of(plan), strict=True):
            other_s = (1 + sums) * sum_s
            policy.observe(worker, own, own / speed, other_s=other_s, sums=sums if knows_sums else 1)
            took_s = max(took_s, own / speed + other_s)
    return took_s


@pytest.mark.parametrize(("units", "sum_s", "most"), [(256, 0.3, 0.75), (256, 0.08, 0.97), (64, 0.3, 0.9)])
def test_sums_that_take_long_are_fewer_and_clocks_shorter(units: int, sum_s: float, most: float) -> None:
    new, old = (
        sum(clocks_s(units, sum_s, knows_sums=knows, seed=seed) for seed in range(8))
        for knows in (True, False)
    )
    assert new <= most * old


def test_a_plan_says_in_which_steps_it_deals_and_is_not_solved_again_while_speeds_stay() -> None:
    home, asked = Home(4, 256), 0

    def sums_of(units: tuple[int, ...]) -> list[int]:
        nonlocal asked
        asked += 1
        return home.sums_of(units)

    policy = LbBsp(256, RestartingEma, home=dict.fromkeys(WORKERS, 64), hold=0.01, sums_of=sums_of)
    reasons = []
    for _ in range(8):
        asked = 0
        plan = policy.plan(WORKERS)
        reasons.append(plan.reason)
        own = home.sums_of(plan.units)
        for worker, units, speed, sums in zip(
            WORKERS, plan.units, (64.0, 44.8, 33.9, 26.2), own, strict=True
        ):
            policy.observe(worker, units, units / speed, other_s=0.3 * (1 + sums), sums=sums)
    (dealt,) = {reason.partition("; ")[2] for reason in reasons if "in steps of" in reason}
    step = min(units & -units for units in plan.units)
    assert dealt == f"in steps of {step} units, of which no worker sends more than {max(own)} sums"
    assert step >= 8 and asked == 1, "it only looks at what the plan before takes"


def test_a_number_of_sums_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 sums; expected at least 1"):
        LbBsp(8, RestartingEma).observe("a", 4, 1.0, sums=0)
