"""Every plan of a small model, one by one, costed from the formulas and nothing of the library's solver."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.profile.layers import Profile
from pipeline.topology.levels import Topology

Mask = int
# (first, last, components, inner pipeline or None at the innermost level)
Segment = tuple[Mask, Mask, int, "tuple | None"]


@dataclass(frozen=True)
class Limits:
    memory_bytes: float | None = None
    optimizer_factor: float = 1.0
    recompute: bool | str = False
    straight: bool = False
    max_stages: int | None = None
    prefixes_only: bool = False
    max_replicas: int | None = None


def best_seconds(profile: Profile, topology: Topology, model: str, limits: Limits) -> float:
    """The least seconds per minibatch over all plans; infinite if none fits."""
    sets = _closed(profile, limits.prefixes_only)
    best = math.inf
    whole = (1 << len(profile.layers)) - 1
    levels = len(topology.levels)
    if limits.memory_bytes is None and limits.max_stages is None:
        # Nothing ties the inner pipelines together: the best of each is enough.
        return _best_free(
            profile, topology, model, limits, sets, levels, 0, whole, topology.levels[-1][0], {}
        )
    for pipeline in _pipelines(topology, sets, levels, 0, whole, topology.levels[-1][0], limits.straight):
        best = min(best, _limited_cost(profile, topology, model, limits, levels, pipeline))
    return best


def _closed(profile: Profile, prefixes_only: bool) -> list[Mask]:
    count = len(profile.layers)
    if prefixes_only:
        mask, masks = 0, [0]
        for layer in profile.topological_order():
            mask |= 1 << layer
            masks.append(mask)
        return masks
    return [
        mask
        for mask in range(1 << count)
        if all(mask >> a & 1 or not mask >> b & 1 for a, b in profile.edges)
    ]


def _sum(profile: Profile, mask: Mask, key: str) -> float:
    return sum(getattr(layer, key) for i, layer in enumerate(profile.layers) if mask >> i & 1)


def _cut_bytes(profile: Profile, mask: Mask) -> float:
    crossing = {a for a, b in profile.edges if mask >> a & 1 and not mask >> b & 1}
    return sum(profile.layers[a].activation_bytes for a in crossing)


def _between(sets: list[Mask], i: Mask, j: Mask) -> Iterator[Mask]:
    return (k for k in sets if k != i and k != j and k & i == i and k & j == k)


def _combine(
    profile: Profile, topology: Topology, model: str, level: int, parts: list[tuple[Mask, Mask, int, float]]
) -> float:
    """Seconds of a pipeline at one level from (first, last, components, seconds on one component)."""
    bandwidth = topology.levels[level - 1][1]
    groups = topology.levels[level - 2][0] if level > 1 else 1
    worst = 0.0
    for index, (first, last, m, inner) in enumerate(parts):
        weights = _sum(profile, last & ~first, "parameter_bytes")
        cut, end = _cut_bytes(profile, first), _cut_bytes(profile, last)
        if model == "thesis":
            worst = max(worst, max(inner, 2 * (m - 1) * weights / bandwidth) / m)
            if index:
                worst = max(worst, 2 * cut / bandwidth)
        else:
            exchange = 4 * (m - 1) * weights / (bandwidth * m)
            worst = max(worst, (inner + (exchange if index else exchange / groups)) / m)
            if index:
                worst = max(worst, 2 * max(cut, end) / (bandwidth * m))
    return worst


def _shares(total: int, straight: bool, most: int | None = None) -> Iterator[tuple[int, ...]]:
    """Ordered shares of at most `total` components."""
    most = 1 if straight else min(most or total, total)
    for parts in range(1, total + 1):
        for share in itertools.product(range(1, most + 1), repeat=parts):
            if sum(share) <= total:
                yield share


def _chains(sets: list[Mask], i: Mask, j: Mask, parts: int) -> Iterator[tuple[Mask, ...]]:
    if parts == 1:
        yield (i, j)
        return
    for k in _between(sets, i, j):
        for rest in _chains(sets, k, j, parts - 1):
            yield (i, *rest)


def _best_free(profile, topology, model, limits, sets, level, i, j, m, known) -> float:
    if level == 0:
        again = 1 if limits.recompute is True else 0
        mask = j & ~i
        forward, backward = _sum(profile, mask, "forward_s"), _sum(profile, mask, "backward_s")
        return forward * (1 + again) + backward
    key = (level, i, j, m)
    if key in known:
        return known[key]
    best = math.inf
    count = topology.levels[level - 2][0] if level > 1 else 1
    for share in _shares(m, limits.straight, limits.max_replicas):
        for chain in _chains(sets, i, j, len(share)):
            parts = [
                (a, b, n, _best_free(profile, topology, model, limits, sets, level - 1, a, b, count, known))
                for a, b, n in zip(chain, chain[1:], share, strict=False)
            ]
            best = min(best, _combine(profile, topology, model, level, parts))
    known[key] = best
    return best


def _pipelines(topology, sets, level, i, j, m, straight) -> Iterator[tuple[Segment, ...]]:
    count = topology.levels[level - 2][0] if level > 1 else 1
    for share in _shares(m, straight):
        for chain in _chains(sets, i, j, len(share)):
            options = []
            for a, b, n in zip(chain, chain[1:], share, strict=False):
                inner = [None] if level == 1 else _pipelines(topology, sets, level - 1, a, b, count, straight)
                options.append([(a, b, n, pipeline) for pipeline in inner])
            yield from itertools.product(*options)


def _flat(pipeline: tuple[Segment, ...], copies: int) -> list[tuple[Mask, Mask, int]]:
    stages = []
    for first, last, m, inner in pipeline:
        stages += [(first, last, copies * m)] if inner is None else _flat(inner, copies * m)
    return stages


def _limited_cost(profile, topology, model, limits, level, pipeline) -> float:
    stages = _flat(pipeline, 1)
    if limits.max_stages is not None and len(stages) > limits.max_stages:
        return math.inf
    seconds = {}
    for index, (first, last, replicas) in enumerate(stages):
        workers = sum(r for _, _, r in stages[index:])
        seconds[first, last] = _leaf_seconds(profile, limits, first, last, math.ceil(workers / replicas))
    return _tree_cost(profile, topology, model, level, pipeline, seconds)


def _tree_cost(profile, topology, model, level, pipeline, seconds) -> float:
    parts = [
        (
            first,
            last,
            m,
            seconds[first, last]
            if inner is None
            else _tree_cost(profile, topology, model, level - 1, inner, seconds),
        )
        for first, last, m, inner in pipeline
    ]
    return _combine(profile, topology, model, level, parts)


def _leaf_seconds(profile: Profile, limits: Limits, first: Mask, last: Mask, d: int) -> float:
    mask = last & ~first
    forward, backward = _sum(profile, mask, "forward_s"), _sum(profile, mask, "backward_s")
    weights, kept = _sum(profile, mask, "parameter_bytes"), _sum(profile, mask, "activation_bytes")
    fixed = weights * (1 + limits.optimizer_factor)
    limit = math.inf if limits.memory_bytes is None else limits.memory_bytes
    if limits.recompute is not True and d * (weights + kept) + fixed <= limit:
        return forward + backward
    taken = _cut_bytes(profile, first) if first else profile.input_bytes
    if limits.recompute is not False and d * (weights + taken) + kept + fixed <= limit:
        return 2 * forward + backward
    return math.inf
