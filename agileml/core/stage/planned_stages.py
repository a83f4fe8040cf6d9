"""How many stages and replicas a pipeline has on so many machines, where the job leaves it to the planner.

PipeDream's optimizer (`pipeline.partition`) finds the stages of the best rate, where sums of replicas are exchanged
while the next are computed. Here the last stage waits for its exchange, and with a flush every stage does and a clock
waits for the pipeline to fill and to run empty, too; so the optimizer is asked for several limits of stages, and the
plan with the shortest clock is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from agileml.core.protocol.job import PipelineRules
from pipeline.partition.plan import Plan
from pipeline.partition.planner import Options, top_plans
from pipeline.profile.layers import Layer, Profile
from pipeline.topology.levels import Topology

ASSUMED_BYTES_PER_S = 125e6  # of a machine's link, until transfers have shown what it carries
MOST_BYTES_PER_S = 1e12  # of links that limited nothing
LIMITS = (1, 2, 3, 4, 6, 8)  # of stages that are tried
FORWARD = 1 / 3  # of a layer's seconds; only the sum counts


@dataclass(frozen=True)
class PlannedStages:
    """The partition behind the last of each stage, its machines, and the seconds of a clock that are expected;
    `alone_s`: with data parallelism on all machines."""

    ends: tuple[int, ...]
    replicas: tuple[int, ...]
    clock_s: float
    alone_s: float

    @property
    def sentence(self) -> str:
        """The plan in words."""
        shape = "-".join(map(str, self.replicas))
        return (
            f"planned {shape}: {1e3 * self.clock_s:.3g} ms a clock expected, "
            f"{1e3 * self.alone_s:.3g} ms with data parallelism"
        )


def planned_stages(
    rules: PipelineRules, machines: int, units: int, bytes_per_s: float | None
) -> PlannedStages:
    """The stages for so many machines, at most as many as units. bytes_per_s: of a machine's link, each way; None: not
    known yet.

    The rate is taken to a power of two, because it is known no better.
    """
    seen = ASSUMED_BYTES_PER_S if bytes_per_s is None else min(bytes_per_s, MOST_BYTES_PER_S)
    return _planned(rules, min(machines, units), units, 2.0 ** round(math.log2(seen)))


@lru_cache(maxsize=64)
def _planned(rules: PipelineRules, machines: int, units: int, bytes_per_s: float) -> PlannedStages:
    profile, topology = _profile(rules, units), Topology(((machines, bytes_per_s),))
    most = min(machines, len(rules.weights), rules.most or machines)
    best: PlannedStages | None = None
    alone_s = math.inf
    for stages in sorted({min(limit, most) for limit in LIMITS} | {most}):
        options = Options(prefixes_only=True, max_stages=stages)
        plan = top_plans(profile, topology, 1, options)[0]
        clock_s = clock_seconds(plan, rules, units, bytes_per_s)
        alone_s = clock_s if stages == 1 else alone_s
        if best is None or clock_s < best.clock_s:
            ends = tuple(accumulate(len(stage.layers) for stage in plan.stages))
            replicas = tuple(stage.replicas for stage in plan.stages)
            best = PlannedStages(ends, replicas, clock_s, alone_s)
    assert best is not None, (rules, machines, units)
    return best


def _profile(rules: PipelineRules, units: int) -> Profile:
    """The partitions as a chain of layers, for all units of a clock: one exchange of weights belongs to these."""
    layers = tuple(
        Layer(
            f"partition {p}", s * units * FORWARD, s * units * (1 - FORWARD), float(sent * units), float(size)
        )
        for p, (s, sent, size) in enumerate(
            zip(rules.weights, rules.sent_bytes, rules.partition_bytes, strict=True)
        )
    )
    return Profile("job", layers, tuple(pairwise(range(len(layers)))))


def clock_seconds(plan: Plan, rules: PipelineRules, units: int, bytes_per_s: float) -> float:
    """The seconds of a clock by a plan of all its units."""
    unit_s = [stage.compute_s / units for stage in plan.stages]
    busy_s = [math.ceil(units / stage.replicas) * s for stage, s in zip(plan.stages, unit_s, strict=True)]
    exchange_s = [
        2 * (stage.replicas - 1) / stage.replicas * stage.parameter_bytes / bytes_per_s
        for stage in plan.stages
    ]
    links_s = [2 * stage.output_bytes / bytes_per_s for stage in plan.stages]
    carried_s = max(
        s / min(a.replicas, b.replicas)
        for s, a, b in zip(links_s, plan.stages, [*plan.stages[1:], plan.stages[-1]], strict=True)
    )
    if not rules.flushes:
        # What is exchanged while a stage computes shares the links with what it passes on.
        passed_s = [
            (before + behind) / 2 / stage.replicas
            for before, behind, stage in zip([0.0, *links_s], links_s, plan.stages, strict=False)
        ]
        beside_s = [s + passed for s, passed in zip(exchange_s[:-1], passed_s, strict=False)]
        return max(carried_s, *busy_s[:-1], *beside_s, busy_s[-1] + exchange_s[-1])
    slowest = max(range(len(busy_s)), key=busy_s.__getitem__)
    fill_s = sum(unit_s) - unit_s[slowest] + sum(links_s) / units
    return max(busy_s[slowest], carried_s) + fill_s + max(exchange_s)
