"""Plans the stages of a pipeline and their replicas on a number of machines, where the job leaves it to the planner.

PipeDream's optimizer (`pipeline.partition`) finds the stages of the best rate, where sums of replicas are exchanged
while the next are computed. Here the last stage waits for its exchange, and with a flush every stage does and a clock
waits for the pipeline to fill and to run empty, too; so the optimizer is asked for several limits of stages, borders
of each plan move where that makes its clock shorter, and the plan with the shortest clock is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from agileml.core.protocol.job import PipelineRules
from agileml.core.stage.unit_ranges import exchanged
from pipeline.partition.planner import Options, top_plans
from pipeline.profile.layers import Layer, Profile
from pipeline.topology.levels import Topology

ASSUMED_BYTES_PER_S = 125e6  # of a machine's link, until transfers have shown what it carries
MOST_BYTES_PER_S = 1e12  # assumed of links that limited nothing
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
        replicas = tuple(stage.replicas for stage in plan.stages)
        found = tuple(accumulate(len(stage.layers) for stage in plan.stages))
        ends = best_borders(rules, found, replicas, units, bytes_per_s)
        clock_s = clock_seconds(rules, ends, replicas, units, bytes_per_s)
        alone_s = clock_s if stages == 1 else alone_s
        if best is None or clock_s < best.clock_s:
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


def best_borders(
    rules: PipelineRules, plan: tuple[int, ...], replicas: tuple[int, ...], units: int, bytes_per_s: float
) -> tuple[int, ...]:
    """The ends of the stages, from those of `plan` on: a border moves while one of its places makes the clock shorter.

    The optimizer has each minibatch's way there and back on one link, and knows no whole units.
    """
    ends, clock_s = plan, clock_seconds(rules, plan, replicas, units, bytes_per_s)
    while True:
        options = [
            (*ends[:at], place, *ends[at + 1 :])
            for at, (before, behind) in enumerate(zip((0, *ends), ends[1:], strict=False))
            for place in range(before + 1, behind)
        ]
        timed = ((clock_seconds(rules, each, replicas, units, bytes_per_s), each) for each in options)
        best_s, best = min(timed, default=(clock_s, ends))
        if best_s >= clock_s:
            return ends
        ends, clock_s = best, best_s


def clock_seconds(
    rules: PipelineRules, ends: Sequence[int], replicas: Sequence[int], units: int, bytes_per_s: float
) -> float:
    """The seconds of a clock. `ends`: the partition behind the last of each stage."""
    ranges = list(pairwise((0, *ends)))
    seconds, sizes = _sums_before(rules.weights), _sums_before(rules.partition_bytes)
    unit_s = [seconds[b] - seconds[a] for a, b in ranges]
    busy_s = [math.ceil(units / count) * s for count, s in zip(replicas, unit_s, strict=True)]
    exchange_s = [
        exchanged(units, count) * (sizes[b] - sizes[a]) / bytes_per_s
        for count, (a, b) in zip(replicas, ranges, strict=True)
    ]
    # Activations go one way and their gradients the other. A stage sends both: behind it and before it.
    links_s = [units * rules.sent_bytes[end - 1] / bytes_per_s for end in ends[:-1]]
    carried_s = [
        (before + behind) / count
        for before, behind, count in zip((0.0, *links_s), (*links_s, 0.0), replicas, strict=True)
    ]
    if not rules.flushes:
        # Sums that a stage exchanges while it computes share the links with the tensors that it passes on.
        beside_s = [s + passed for s, passed in zip(exchange_s[:-1], carried_s, strict=False)]
        return max(*busy_s[:-1], *beside_s, *carried_s, busy_s[-1] + exchange_s[-1])
    slowest = max(range(len(busy_s)), key=busy_s.__getitem__)
    fill_s = sum(unit_s) - unit_s[slowest] + 2 * sum(links_s) / units
    return max(busy_s[slowest], *carried_s) + fill_s + max(exchange_s)


@lru_cache(maxsize=16)
def _sums_before(figures: tuple[float, ...]) -> tuple[float, ...]:
    """By partition the sum over those before it, and last over all: a border moves through thousands of places."""
    return tuple(accumulate(figures, initial=0.0))
