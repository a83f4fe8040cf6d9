"""A plan beside the other ways to train the same model on the same machines, each simulated."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pipeline.partition import Options, PartitionError, top_plans
from pipeline.plan import Plan
from pipeline.profile import Profile
from pipeline.schedule import Schedule, full_rate_in_flight, gpipe, model_parallel, noam, one_f_one_b
from pipeline.timing import Network, Timeline, simulate_plan
from pipeline.topology import Topology


@dataclass(frozen=True)
class Row:
    """One way to train: its plan's shape, predicted (None where the cost model has no word) and simulated
    seconds per minibatch."""

    name: str
    config: str
    predicted_s: float | None
    simulated_s: float


def plan_schedule(plan: Plan, minibatches: int, *, memory_limited: bool = False) -> Schedule:
    """1F1B for a plan, by its own stage times, with enough in flight for its inner replicated stages; only
    with as many as its memory was planned for (NOAM) where that is limited."""
    replicas = [stage.replicas for stage in plan.stages]
    return one_f_one_b(
        replicas,
        minibatches,
        in_flight=noam(replicas) if memory_limited else full_rate_in_flight(replicas),
        forward_s=[stage.forward_s for stage in plan.stages],
        backward_s=[stage.backward_s for stage in plan.stages],
    )


def simulate_long(plan: Plan, network: Network | None = None, *, memory_limited: bool = False) -> Timeline:
    """The plan's own schedule, long enough to show its long-run pace."""
    replicas = [stage.replicas for stage in plan.stages]
    minibatches = 12 * max(replicas) + 4 * plan.workers + 2 * math.lcm(*replicas)
    return simulate_plan(plan, plan_schedule(plan, minibatches, memory_limited=memory_limited), network)


def compare(
    plan: Plan, profile: Profile, topology: Topology, options: Options, network: Network | None = None
) -> list[Row]:
    """The plan, data parallelism, model parallelism and GPipe on the plan's own stages."""
    limited = options.memory_bytes is not None
    own = simulate_long(plan, network, memory_limited=limited)
    rows = [Row("pipeline (1F1B)", plan.config, plan.seconds_per_minibatch, own.seconds_per_minibatch())]
    try:
        whole = top_plans(profile, topology, 1, replace(options, max_stages=1, straight=False))[0]
    except PartitionError:
        whole = None
    if whole is not None and whole.workers == topology.devices:
        rows.append(
            Row(
                "data parallelism",
                whole.config,
                whole.seconds_per_minibatch,
                simulate_long(whole, network).seconds_per_minibatch(),
            )
        )
    else:
        rows.append(
            Row("data parallelism", "data parallel", plan.data_parallel_seconds, plan.data_parallel_seconds)
        )
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
