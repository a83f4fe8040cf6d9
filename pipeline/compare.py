"""A plan beside the other ways to train the same model on the same machines, each simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.partition.memory import MemoryRules, stage_bytes
from pipeline.partition.plan import Plan
from pipeline.partition.planner import Options, PartitionError, data_parallel_plan, top_plans
from pipeline.profile.layers import Profile
from pipeline.schedule.actions import Schedule
from pipeline.schedule.policies import (
    full_rate_in_flight,
    gpipe,
    long_enough,
    model_parallel,
    noam,
    one_f_one_b,
    stage_limits,
)
from pipeline.schedule.timing import Network, Timeline, simulate_plan
from pipeline.topology.levels import Topology, parse_topology

# In flight at a replicated stage that is the whole model: data parallelism hides its exchange behind the backward, here
# behind the next minibatch.
_ALONE = 2


@dataclass(frozen=True)
class Row:
    """One way to train: its plan's shape, predicted (None where the cost model has no word) and simulated
    seconds per minibatch."""

    name: str
    config: str
    predicted_s: float | None
    simulated_s: float


@dataclass(frozen=True)
class Depth:
    """A number of minibatches in flight per input replica, and its price (thesis, figure 5.18): simulated seconds per
    minibatch, and the bytes of a device of each stage."""

    in_flight: int
    simulated_s: float
    memory_bytes: tuple[float, ...]


def plan_schedule(plan: Plan, minibatches: int, in_flight: int, network: Network | None = None) -> Schedule:
    """1F1B for a plan, by its own stage times and links."""
    network = network or Network(parse_topology(plan.topology))
    return one_f_one_b(
        [stage.replicas for stage in plan.stages],
        minibatches,
        in_flight=in_flight,
        forward_s=[stage.forward_s for stage in plan.stages],
        backward_s=[stage.backward_s for stage in plan.stages],
        link_s=[
            max(network.seconds(x, y, a.output_bytes) for x in a.devices for y in b.devices)
            for a, b in zip(plan.stages, plan.stages[1:], strict=False)
        ],
    )


def simulate_long(plan: Plan, in_flight: int, network: Network | None = None) -> Timeline:
    """The plan's own schedule, long enough to show its long-run pace."""
    minibatches = long_enough([stage.replicas for stage in plan.stages], in_flight)
    return simulate_plan(plan, plan_schedule(plan, minibatches, in_flight, network), network)


def best_in_flight(plan: Plan, options: Options | None = None, network: Network | None = None) -> int:
    """Minibatches in flight per input replica: the fewest that come within 1% of the best simulated pace.

    NOAM counts workers only; inner replicated stages and slow links need more. Where memory is limited only
    counts that fit are tried; the plan itself was made for NOAM.
    """
    options = options or Options()
    replicas = [stage.replicas for stage in plan.stages]
    least = noam(replicas)
    if len(replicas) == 1:
        return _ALONE if replicas[0] > 1 else least
    tried = sorted({least, full_rate_in_flight(replicas), *(math.ceil(least * f) for f in (1.25, 1.5, 2, 3))})
    tried = [count for count in tried if count == least or _fits(plan, options, count)]
    pace = {count: simulate_long(plan, count, network).seconds_per_minibatch() for count in tried}
    return next(count for count in tried if pace[count] <= 1.01 * min(pace.values()))


def depths(
    plan: Plan, counts: Sequence[int], options: Options | None = None, network: Network | None = None
) -> list[Depth]:
    """The plan with each of these numbers of minibatches in flight per input replica. Raises ScheduleError."""
    options = options or Options()
    found = []
    for count in counts:
        pace_s = simulate_long(plan, count, network).seconds_per_minibatch()
        found.append(Depth(count, pace_s, tuple(memory_at(plan, options, count))))
    return found


def memory_at(plan: Plan, options: Options, in_flight: int) -> list[float]:
    """Bytes of a device of each stage with so many minibatches in flight per input replica."""
    limits = stage_limits([stage.replicas for stage in plan.stages], in_flight)
    rules = MemoryRules(group=options.group)
    return [
        stage_bytes(rules.held(held), stage.parameter_bytes, stage.kept_bytes, options.optimizer_factor)
        + (stage.activation_bytes if stage.recompute else 0.0)
        for stage, held in zip(plan.stages, limits, strict=True)
    ]


def _fits(plan: Plan, options: Options, in_flight: int) -> bool:
    """Whether every stage has the memory for so many in flight per input replica."""
    return options.memory_bytes is None or max(memory_at(plan, options, in_flight)) <= options.memory_bytes


def compare(
    plan: Plan, profile: Profile, topology: Topology, options: Options, network: Network | None = None
) -> list[Row]:
    """The plan, data parallelism, model parallelism and GPipe on the plan's own stages."""
    count = best_in_flight(plan, options, network)
    own = simulate_long(plan, count, network)
    name = f"1F1B, {count} in flight"
    rows = [Row(name, plan.config, plan.seconds_per_minibatch, own.seconds_per_minibatch())]
    whole = data_parallel_plan(profile, topology, options)
    if whole is not None:
        pace = simulate_long(whole, _ALONE, network).seconds_per_minibatch()
        rows.append(Row("data parallelism", whole.config, whole.seconds_per_minibatch, pace))
    replicas = [stage.replicas for stage in plan.stages]
    if len(replicas) > 1:
        depth = noam(replicas) * replicas[0]
        flushed = simulate_plan(plan, gpipe(replicas, 8 * depth, depth), network)
        rows.append(Row(f"GPipe, {depth} per flush", plan.config, None, flushed.seconds_per_minibatch()))
    try:
        straight = top_plans(profile, topology, 1, replace(options, straight=True))[0]
    except PartitionError:
        return rows
    one = simulate_plan(straight, model_parallel([1] * len(straight.stages), 12), network)
    rows.append(Row("model parallelism", f"{len(straight.stages)} stages", None, one.makespan_s / 12))
    return rows
