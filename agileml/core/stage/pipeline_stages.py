"""Assigns layers to machines: neighbouring partitions for each stage, so that the slowest is as fast as can be.

A stage may have several machines, its replicas: each computes a share of the units with all layers of the stage, and
owns some of its partitions. A machine that stays keeps its place in the order or, where stages have replicas, goes
where most of its layers are, so few partitions move; machines that come take the places that are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from agileml.core.protocol.job import PipelineRules
from agileml.core.protocol.view import StageGroup
from agileml.core.stage.placement import Machines, Placement, deal_slices, spread, stripe
from agileml.core.stage.planned_stages import planned_stages
from agileml.core.stage.shares import filled_weights
from agileml.core.stage.unit_ranges import unit_ranges
from straggler.coverage import span

Groups = list[list[str]]  # the machines of each stage


def place_stages(
    machines: Machines,
    rules: PipelineRules,
    units: int,
    before: Sequence[StageGroup],
    owner: Sequence[str],
    backup: Sequence[str],
    worker: Sequence[str],
    previous: Sequence[str],
) -> Placement:
    """The arrangement of a pipeline on these machines: transient ones are its stages where there are some.

    `units`: of a clock, which the replicas of a stage share out. `before`: the stages so far.
    """
    nodes = machines.transient or machines.reliable
    speeds = speeds_in_order(machines, nodes, before) if rules.follows_speeds else ()
    cut = cut_stages(rules, len(nodes), units, machines.bytes_per_s, speeds)
    ends, counts = cut.ranges, cut.replicas
    chosen = _chosen(nodes, before, sum(counts))
    groups = _groups(chosen, before, ends, counts)
    weights = dict(machines.weights)
    pipeline = tuple(
        StageGroup(
            first,
            stop,
            _shares(group, units, weights),
            overlaps=overlaps_exchange(rules, len(group), is_last=stop == ends[-1][1]),
        )
        for (first, stop), group in zip(ends, groups, strict=True)
    )
    new_owner = [
        node
        for stage in pipeline
        for node in spread(owner[stage.first : stage.stop], stage.machines[: stage.stop - stage.first])
    ]
    new_worker, new_previous = deal_slices(worker, previous, [node for group in groups for node in group])
    return Placement(
        3 if machines.transient else 1,
        tuple(new_owner),
        stripe(backup, machines.reliable),
        new_worker,
        new_previous,
        _reason(pipeline) + cut.why,
        pipeline,
    )


def overlaps_exchange(rules: PipelineRules, replicas: int, *, is_last: bool) -> bool:
    """True if the replicas of a stage exchange the sums of a clock while they compute the next.

    The last stage has one clock in flight, so it has nothing to compute meanwhile. The rule is that of
    `pipeline.schedule.actions.Schedule.rounds_behind`.
    """
    return not rules.flushes and replicas > 1 and not is_last


def _reason(pipeline: Sequence[StageGroup]) -> str:
    """The stages in words; of a stage with replicas also the units of each."""

    def at(stage: StageGroup) -> str:
        if len(stage.replicas) == 1:
            return stage.machines[0]
        return " and ".join(f"{node} ({units.bit_count()} units)" for node, units in stage.replicas)

    ranges = ", ".join(f"{stage.first}-{stage.stop - 1} at {at(stage)}" for stage in pipeline)
    count = len(pipeline)
    return f"a pipeline of {count} {'stage' if count == 1 else 'stages'}, partitions {ranges}"


# -- cuts ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StageCut:
    """Of each stage (first partition, the one behind the last), and the number of its machines. why: a clause for the
    reason of the change."""

    ranges: list[tuple[int, int]]
    replicas: tuple[int, ...]
    why: str = ""


def speeds_in_order(
    machines: Machines, nodes: Sequence[str], before: Sequence[StageGroup]
) -> tuple[float, ...]:
    """The machines' speeds in the order of the stages that they get if each has one."""
    return tuple(filled_weights(_chosen(nodes, before, len(nodes)), machines.weights).values())


def cut_stages(
    rules: PipelineRules,
    machines: int,
    units: int,
    bytes_per_s: float | None = None,
    speeds: Sequence[float] = (),
) -> StageCut:
    """The stages for so many machines, whose links carry `bytes_per_s` (None: not known).

    First there are as many stages as there may be, then machines that are left become replicas; or as planned.
    `speeds`: of the machines in the order of the stages, for stages of one machine each; none: they are alike.
    """
    weights = rules.weights
    if rules.replicas is None:
        plan = planned_stages(rules, machines, units, bytes_per_s)
        return StageCut(list(pairwise((0, *plan.ends))), plan.replicas, f" ({plan.sentence})")
    stages = min(machines, len(weights), rules.most or machines)
    allowed = rules.replicas
    if isinstance(allowed, tuple):
        stages = min(stages, len(allowed))
        most = allowed if stages == len(allowed) else (1,) * stages
    else:
        most = (allowed,) * stages
    most = tuple(min(each, units) for each in most)
    count = min(machines, sum(most))
    if count == stages:
        return StageCut(least_slowest(weights, stages, speeds), (1,) * stages)
    return StageCut(*least_slowest_replicated(tuple(weights), most, count))


def least_slowest(
    weights: Sequence[float], stages: int, speeds: Sequence[float] = ()
) -> list[tuple[int, int]]:
    """The ranges (first, behind the last) of so many stages whose slowest is as fast as can be; none is empty.

    A stage takes the sum of its weights, over its machine's speed (thesis, 6.2.3). `speeds`: of the stages in order,
    none: all are 1.
    """
    before = [0.0]
    for weight in weights:
        before.append(before[-1] + weight)
    # best[j]: (heaviest stage, ends) over the first j partitions.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage, speed in enumerate(speeds[:stages] or (1.0,) * stages):
        best = {
            end: min(
                (max(worst, (before[end] - before[start]) / speed), (*ends, end))
                for start, (worst, ends) in best.items()
                if start < end
            )
            for end in range(stage + 1, len(weights) - (stages - stage - 1) + 1)
        }
    _, ends = best[len(weights)]
    return list(zip((0, *ends[:-1]), ends, strict=True))


@lru_cache(maxsize=64)
def least_slowest_replicated(
    weights: tuple[float, ...], most: tuple[int, ...], machines: int
) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """Ranges and numbers of machines, at most `most[l]` at stage l and `machines` in all, so that the largest
    weight / machines of a stage is least. All machines have a place: of equal choices the one that gives more to the
    stages in front."""
    before = list(accumulate(weights, initial=0.0))
    stages, partitions = len(most), len(weights)
    assert stages <= machines <= sum(most) and stages <= partitions, (weights, most, machines)
    # best[end, used]: (slowest stage, ends, minus the machines of each) over the first stages.
    best: dict[tuple[int, int], tuple[float, tuple[int, ...], tuple[int, ...]]] = {(0, 0): (0.0, (), ())}
    for stage, limit in enumerate(most):
        found: dict[tuple[int, int], tuple[float, tuple[int, ...], tuple[int, ...]]] = {}
        left = stages - stage - 1
        room = sum(most[stage + 1 :])
        for (start, used), (worst, ends, counts) in best.items():
            stops = range(start + 1, partitions - left + 1) if left else (partitions,)
            least = max(1, machines - used - room)
            for count in range(least, min(limit, machines - used - left) + 1):
                for stop in stops:
                    slowest = max(worst, (before[stop] - before[start]) / count)
                    option = (slowest, (*ends, stop), (*counts, -count))
                    key = stop, used + count
                    if key not in found or option < found[key]:
                        found[key] = option
        best = found
    _, ends, counts = best[partitions, machines]
    return list(pairwise((0, *ends))), tuple(-count for count in counts)


# -- machines -----------------------------------------------------------------------------------------------


def _chosen(nodes: Sequence[str], before: Sequence[StageGroup], count: int) -> list[str]:
    """The machines at work: those of the stages so far in their order, then others."""
    serving = [node for stage in before for node in stage.machines if node in nodes]
    return (serving + [node for node in nodes if node not in serving])[:count]


def _groups(
    chosen: Sequence[str],
    before: Sequence[StageGroup],
    ends: Sequence[tuple[int, int]],
    counts: Sequence[int],
) -> Groups:
    """The machines of each stage."""
    if sum(counts) == len(counts):
        return [[node] for node in chosen]
    had = {node: stage for stage in before for node in stage.machines}
    groups: Groups = [[] for _ in counts]

    def shared(node: str, stage: int) -> int:
        """How many partitions of its stage so far a machine would still compute."""
        (first, stop), old = ends[stage], had.get(node)
        return max(0, min(stop, old.stop) - max(first, old.first)) if old is not None else 0

    options = sorted(
        ((-shared(node, stage), at, stage) for at, node in enumerate(chosen) for stage in range(len(counts)))
    )
    placed: set[int] = set()
    for _, at, stage in options:
        if at not in placed and len(groups[stage]) < counts[stage]:
            placed.add(at)
            groups[stage].append(chosen[at])
    order = {node: at for at, node in enumerate(chosen)}
    return [sorted(group, key=order.__getitem__) for group in groups]


def _shares(group: Sequence[str], units: int, weights: Mapping[str, float]) -> tuple[tuple[str, int], ...]:
    """The units of each replica: neighbours, by the machines' weights."""
    found = unit_ranges(units, filled_weights(group, weights))
    return tuple((node, span(*ends)) for node, ends in found.items())
