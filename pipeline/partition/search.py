"""From the tables to plans, best first.

The tables give the exact cost of the best completion of every unfinished plan, so a search that always takes
up the most promising one reaches the best plan without a detour, then the second, the third, and so on.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.partition.kernels import (
    Floats,
    cut_seconds,
    exchange_seconds,
    stage_seconds,
    uncut_exchange_seconds,
)
from pipeline.partition.tables import Tables

# (m, seconds of weight exchange) of each replication around a range, inside out.
Wrapping = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Segment:
    """One part of a range's pipeline at a level: states first -> last on `part` (count per component type).

    inner: the pipeline inside each of those components; None: one stage on all of their devices.
    """

    first: int
    last: int
    part: tuple[int, ...]
    inner: tuple[Segment, ...] | None


@dataclass(frozen=True)
class _Open:
    """A range that is not yet divided, on part c of a component, with the limits of the tables' axes."""

    level: int
    kind: int
    i: int
    j: int
    c: int
    n: int
    u: int
    b: int
    wrapping: Wrapping


@dataclass(frozen=True)
class _Choice:
    """The last segment of an open range: from state k on `part`; rest: what stays open before it."""

    k: int
    part: int
    rest: _Open | None
    inner: _Open | None


_Node = tuple[tuple[_Open, ...], tuple[_Choice, ...], float]


def wrapped(model: int, seconds: Floats | float, wrapping: Wrapping) -> Floats:
    """Seconds of a range as they count in the whole plan, through the replications around it."""
    for m, exchange_s in wrapping:
        seconds = stage_seconds.py_func(model, seconds, m, exchange_s)
    return np.asarray(seconds)


def best_first(tables: Tables, c: int, keep: int | None) -> Iterator[tuple[float, tuple[Segment, ...]]]:
    """Plans on part c of the whole topology as (seconds, segments), best first.

    keep: how many ways to go on are remembered at each step; enough for that many plans when every way leads
    to different ones (None = all). Yields nothing if no plan fits.
    """
    problem = tables.problem
    top = len(problem.parts.topology.levels)
    stages = 1 if problem.max_stages is None else problem.max_stages
    size = int(tables.choices(top, 0).sizes[c])
    used = size * problem.parts.topology.component_devices(top - 1) if problem.counts_devices else 1
    root = _Open(top, 0, 0, len(problem.sets) - 1, c, stages - 1, used - 1, 0, ())
    bound = float(tables.row(top, 0, 0)[c, root.j, root.n, root.u, 0])
    if not np.isfinite(bound):
        return
    tie = itertools.count()
    queue: list[tuple[float, int, int, float, int, _Node]] = []
    heapq.heappush(queue, (bound, 0, 0, 0.0, next(tie), ((root,), (), 0.0)))
    while queue:
        bound, depth, _, _, _, (stack, choices, closed_s) = heapq.heappop(queue)
        if not stack:
            yield bound, _build(tables, iter(choices), root)
            continue
        found = _expand(tables, stack[-1], bound)
        others = max((_value(tables, item) for item in stack[:-1]), default=0.0)
        settled = max(closed_s, others)
        found.sort(key=lambda item: (max(item[0], settled), item[1], item[2]))
        for local_s, components, total_s, settles_s, choice in found[:keep]:
            opened = tuple(item for item in (choice.rest, choice.inner) if item is not None)
            node = ((*stack[:-1], *opened), (*choices, choice), max(closed_s, settles_s))
            key = (max(local_s, settled), depth - 1, components, total_s, next(tie), node)
            heapq.heappush(queue, key)


def _value(tables: Tables, item: _Open) -> float:
    row = tables.row(item.level, item.kind, item.i)
    return float(wrapped(tables.problem.model, row[item.c, item.j, item.n, item.u, item.b], item.wrapping))


# Seconds of the best completion of the range, components it needs, sum of its parts, seconds settled by it.
_Scored = tuple[float, int, float, float, _Choice]


def _expand(tables: Tables, item: _Open, bound: float) -> list[_Scored]:
    """Every last segment of an open range, scored. Of equally fast plans the one with fewer components is
    preferred: they are cheaper, and more of them would only wait."""
    problem = tables.problem
    choices = tables.choices(item.level, item.kind)
    found: list[_Scored] = []
    for part in choices.smaller(item.c):
        if choices.sizes[part] > problem.most_replicas:
            continue
        found += _last_segments(tables, item, part, None, np.array([item.i]), bound)
    between = np.flatnonzero(problem.sets.within[item.i] & problem.sets.within[:, item.j])
    if between.size and not (problem.max_stages is not None and item.n == 0):
        for part, rest in choices.splits(item.c):
            if choices.sizes[part] <= problem.most_replicas:
                found += _last_segments(tables, item, part, rest, between, bound)
    return found


def _last_segments(
    tables: Tables,
    item: _Open,
    part: int,
    rest: int | None,
    starts: npt.NDArray[np.int64],
    bound: float,
) -> list[_Scored]:
    """The choices that put the states `starts` -> j on one part; `rest` holds what is before (None: nothing)."""
    problem = tables.problem
    choices = tables.choices(item.level, item.kind)
    sets, model = problem.sets, problem.model
    m = int(choices.sizes[part])
    bytes_per_s, inner_count = problem.bytes_per_s(item.level), problem.inner_count(item.level)
    weights = sets.parameter_bytes[item.j] - sets.parameter_bytes[starts]
    behind = -(-item.b // m)
    kinds = choices.children(part)
    inner_used = tables.used(item.level - 1)
    found = []
    if rest is None:
        link_s: Floats = np.zeros(1)
        exchange_s = uncut_exchange_seconds.py_func(model, m, weights, bytes_per_s, inner_count)
        most_used = min((item.u + 1) // m, inner_used) if problem.counts_devices else 1
        stage_options = range(item.n, item.n + 1)
    else:
        link_s = cut_seconds.py_func(model, sets.cut_bytes[starts], sets.cut_bytes[item.j], m, bytes_per_s)
        link_s = wrapped(model, link_s, item.wrapping)
        exchange_s = exchange_seconds.py_func(model, m, weights, bytes_per_s)
        most_used = min(item.u // m, inner_used) if problem.counts_devices else 1
        stage_options = range(max(1, item.n))
    for used in range(most_used):
        for stages in stage_options:
            if len(kinds) == 1:
                inner_s = tables.inner_column(item.level - 1, kinds[0], item.j, stages, used, behind)[starts]
            elif used + 1 == inner_used:
                inner_s = tables.solo_column(item.level - 1, kinds, item.j, behind)[starts]
            else:  # a mixture of types runs one stage on all of its devices
                continue
            last_s = wrapped(model, stage_seconds.py_func(model, inner_s, m, exchange_s), item.wrapping)
            axes, before_s, components = _before(tables, item, rest, starts, m, stages, used, bound)
            local_s = np.maximum(np.maximum(before_s, link_s), last_s)
            for at in np.flatnonzero(np.isfinite(local_s)):
                k = int(starts[at])
                opened = None
                settles = float(link_s[at])
                if item.level > 1 and len(kinds) == 1:
                    wrapping = ((m, float(exchange_s[at])), *item.wrapping)
                    inner_all = tables.choices(item.level - 1, kinds[0]).all
                    opened = _Open(
                        item.level - 1, kinds[0], k, item.j, inner_all, stages, used, behind, wrapping
                    )
                else:
                    settles = max(settles, float(last_s[at]))
                waiting = None
                if rest is not None:
                    waiting = _Open(item.level, item.kind, item.i, k, rest, *axes, item.wrapping)
                total = float(before_s[at] + link_s[at] + last_s[at])
                choice = _Choice(k, part, waiting, opened)
                found.append((float(local_s[at]), int(components[at]), total, settles, choice))
    return found


def _before(
    tables: Tables,
    item: _Open,
    rest: int | None,
    starts: npt.NDArray[np.int64],
    m: int,
    stages: int,
    used: int,
    bound: float,
) -> tuple[tuple[int, int, int], Floats, npt.NDArray[np.int64]]:
    """The range left open before a last segment from each of `starts` on m components, with its limits spent.

    Returns its place on the tables' last three axes, its seconds, and the components of it and the segment together.
    """
    if rest is None:
        return (0, 0, 0), np.zeros(1), np.array([m])
    problem, choices = tables.problem, tables.choices(item.level, item.kind)
    row = tables.row(item.level, item.kind, item.i)
    span = used + 1 if problem.counts_devices else problem.parts.topology.component_devices(item.level - 1)
    axes = (
        item.n - stages - 1 if problem.max_stages is not None else 0,
        item.u - m * (used + 1) if problem.counts_devices else 0,
        item.b + m * span if problem.limited else 0,
    )
    components = np.full(starts.size, m + int(choices.sizes[rest]))
    for fewer in choices.smaller(rest):
        enough = wrapped(problem.model, row[fewer, starts, *axes], item.wrapping) <= bound
        components[enough] = np.minimum(components[enough], m + int(choices.sizes[fewer]))
    return axes, wrapped(problem.model, row[rest, starts, *axes], item.wrapping), components


def _build(tables: Tables, choices: Iterator[_Choice], item: _Open) -> tuple[Segment, ...]:
    """The pipeline of one open range from the choices in the order in which they were taken."""
    segments = []
    open_range: _Open | None = item
    while open_range is not None:
        choice = next(choices)
        inner = None
        if choice.inner is not None:
            inner = _build(tables, choices, choice.inner)
        part = tables.choices(open_range.level, open_range.kind).counts[choice.part]
        segments.append(Segment(choice.k, open_range.j, part, inner))
        open_range = choice.rest
    return tuple(reversed(segments))
