"""Plans of each clock at random, and help at the least sign of need: no rule of either is broken unnoticed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from agileml.core.protocol.job import MakeBalancer, PipelineMode, PipelineRules
from straggler.flexrr.protocol import FlexRrParameters
from straggler.lbbsp.policy import UnitPlan
from straggler.speed.predictors import FREE, Resources
from tests.model.schedule import Schedule


class RandomPlans:
    """Any units for anybody, at least one each, and help in every other clock or so. `rng` None: drawn from what was
    observed and planned so far, which is the same at all machines of an all-reduce."""

    def __init__(
        self, units: int, home: Mapping[str, int], rng: random.Random | None, fired: Counter[str]
    ) -> None:
        self._units = units
        self._fired = fired
        self._rng = rng
        self._heard: list[object] = [tuple(home.items())]

    def observe(
        self,
        worker: str,
        units: int,
        seconds: float,
        resources: Resources = FREE,
        *,
        other_s: float = 0.0,
        sums: int = 1,
        expected: float | None = None,
    ) -> None:
        assert 0 < units <= self._units
        assert seconds > 0
        assert other_s >= 0
        self._heard.append((worker, units, seconds))

    def clock_took(self, seconds: float) -> None:
        assert seconds >= 0

    def plan(
        self, workers: tuple[str, ...], resources: Mapping[str, Resources] | None = None
    ) -> UnitPlan[str]:
        rng = self._rng or random.Random(repr(self._heard))
        ends = sorted(rng.sample(range(1, self._units), len(workers) - 1))
        units = tuple(b - a for a, b in zip([0, *ends], [*ends, self._units], strict=True))
        self._heard.append(units)
        self._fired["plan"] += 1
        helps = random.Random(repr(units)).random() < 0.6  # other draws stay as they are
        return UnitPlan(workers, units, 0.0, "drawn", helps=helps)


def random_plans(schedule: Schedule, fired: Counter[str]) -> MakeBalancer | None:
    """The balancer of a schedule; None where its clocks have no plans. It counts them in `fired`."""
    if not schedule.is_planned:
        return None
    is_shared = schedule.toy_mode != "allreduce"
    rng = random.Random(f"{schedule.seed}/{schedule.mode}/plans") if is_shared else None
    return lambda units, home, _: RandomPlans(units, home, rng, fired)


def random_rules(schedule: Schedule) -> PipelineRules:
    """A pipeline whose layers take any time, so that any cut is the best one of some schedule."""
    rng = random.Random(f"{schedule.seed}/{schedule.mode}/rules")
    weights = tuple(rng.uniform(0.1, 3.0) for _ in range(schedule.partitions))
    most, puts_off = rng.choice([None, None, 2, 3]), rng.random() < 0.5
    mode = PipelineMode(schedule.toy_mode)
    replicas: int | tuple[int, ...] = 1
    if schedule.is_replicated:
        most = rng.choice([1, 2, 2, 3])
        replicas = rng.choice([2, 3, 8, (2, 1), (1, 2), (3, 1), (2, 2), (1, 3, 2)])
    puts_off = puts_off and mode is PipelineMode.FLUSH
    return PipelineRules(weights, most, puts_off, mode, replicas, follows_speeds=schedule.is_recut)


def eager_help(schedule: Schedule) -> FlexRrParameters:
    """Settings with which a machine asks for help when it is hardly behind, and gives away much."""
    rng = random.Random(f"{schedule.seed}/{schedule.mode}/help")
    return FlexRrParameters(
        group_size=rng.choice([1, 2, 4]),
        initial=rng.choice([0.05, 0.25]),
        follow_up=rng.choice([0.1, 0.5]),
        checks=rng.choice([4, 100]),
        threshold=rng.choice([0.01, 0.2]),
        checkpoint=rng.choice([0.2, 0.75]),
        replication=rng.choice([0.3, 1.0]),
        resend_ns=int(schedule.seed % 2 + 1) * 200_000_000 if not schedule.orderly else 10**18,
    )
