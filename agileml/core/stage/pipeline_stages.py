"""Which machine holds which layers: neighbouring partitions for each, so that the slowest stage is as fast as can be.

A machine that stays keeps its place in the order, so few partitions move; machines that come stand behind the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from agileml.core.protocol.job import PipelineRules
from agileml.core.stage.placement import Machines, Placement, deal_slices, stripe


def place_stages(
    machines: Machines,
    rules: PipelineRules,
    owner: Sequence[str],
    backup: Sequence[str],
    worker: Sequence[str],
    previous: Sequence[str],
) -> Placement:
    """The arrangement of a pipeline on these machines: transient ones are its stages where there are some."""
    nodes = machines.transient or machines.reliable
    most = min(len(nodes), len(rules.weights), rules.most or len(nodes))
    serving = sorted({node for node in owner if node in nodes}, key=list(owner).index)
    chosen = (serving + [node for node in nodes if node not in serving])[:most]
    ends = least_slowest(rules.weights, most)
    new_owner = [node for node, (a, b) in zip(chosen, ends, strict=True) for _ in range(a, b)]
    new_worker, new_previous = deal_slices(worker, previous, chosen)
    ranges = ", ".join(f"{a}-{b - 1} at {node}" for node, (a, b) in zip(chosen, ends, strict=True))
    return Placement(
        3 if machines.transient else 1,
        tuple(new_owner),
        stripe(backup, machines.reliable),
        new_worker,
        new_previous,
        f"a pipeline of {most} {'stage' if most == 1 else 'stages'}, partitions {ranges}",
    )


def least_slowest(weights: Sequence[float], stages: int) -> list[tuple[int, int]]:
    """The ranges (first, behind the last) of so many stages whose heaviest is lightest; none is empty."""
    before = [0.0]
    for weight in weights:
        before.append(before[-1] + weight)
    # best[j]: (heaviest stage, ends) over the first j partitions.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage in range(stages):
        best = {
            end: min(
                (max(worst, before[end] - before[start]), (*ends, end))
                for start, (worst, ends) in best.items()
                if start < end
            )
            for end in range(stage + 1, len(weights) - (stages - stage - 1) + 1)
        }
    _, ends = best[len(weights)]
    return list(zip((0, *ends[:-1]), ends, strict=True))
