"""From the partitioner's nested segments to a plan: stages on devices, and every term of its time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipeline.partition.kernels import (
    THESIS,
    cut_seconds,
    exchange_seconds,
    stage_seconds,
    uncut_exchange_seconds,
)
from pipeline.partition.memory import in_flight
from pipeline.partition.plan import Source, Stage, Term
from pipeline.partition.search import Segment, Wrapping, wrapped
from pipeline.partition.tables import Problem
from pipeline.topology.levels import Topology


@dataclass
class _Draft:
    """A stage before the stages behind it are known."""

    first: int
    last: int
    devices: list[int]


@dataclass
class _Assembly:
    problem: Problem
    topology: Topology
    speeds: tuple[float, ...]
    drafts: list[_Draft] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)
    # Per draft: the replications around it.
    leaves: list[Wrapping] = field(default_factory=list)


def assemble(
    problem: Problem, segments: tuple[Segment, ...], speeds: tuple[float, ...]
) -> tuple[tuple[Stage, ...], tuple[Term, ...]]:
    """Stages and terms of nested segments; `speeds`: one number per device."""
    return _assemble(problem, segments, speeds, problem.parts.topology)


def seconds_with_faster_links(
    problem: Problem, segments: tuple[Segment, ...], speeds: tuple[float, ...]
) -> tuple[float, ...]:
    """Seconds per minibatch of the same plan with each level's links twice as fast, one level at a time."""
    result = []
    for level in range(1, len(problem.parts.topology.levels) + 1):
        faster = problem.parts.topology.with_bandwidth(level, 2 * problem.bytes_per_s(level))
        _, terms = _assemble(problem, segments, speeds, faster)
        result.append(max(term.seconds for term in terms))
    return tuple(result)


def _assemble(
    problem: Problem, segments: tuple[Segment, ...], speeds: tuple[float, ...], topology: Topology
) -> tuple[tuple[Stage, ...], tuple[Term, ...]]:
    work = _Assembly(problem, topology, speeds)
    _place(work, segments, len(topology.levels), [0], ())
    behind = 0
    stages: list[Stage] = []
    for draft in reversed(work.drafts):
        stages.append(_stage(work, draft, behind))
        behind += len(draft.devices)
    stages.reverse()
    terms = list(work.terms)
    for number, (stage, wrapping) in enumerate(zip(stages, work.leaves, strict=True), start=1):
        seconds = float(wrapped(problem.model, stage.compute_s, _without_exchange(problem.model, wrapping)))
        terms.append(Term(Source.COMPUTE, number, number, 0, stage.compute_s, seconds))
    order = {Source.COMPUTE: 0, Source.WEIGHTS: 1, Source.ACTIVATIONS: 2}
    terms.sort(key=lambda term: (term.first_stage, order[term.source], term.level))
    return tuple(stages), tuple(terms)


def _without_exchange(model: int, wrapping: Wrapping) -> Wrapping:
    """In the thesis' model an exchange is a term of its own beside the computing that it overlaps with; the
    released one adds the two, so there they are one term."""
    return tuple((m, 0.0) for m, _ in wrapping) if model == THESIS else wrapping


def _place(
    work: _Assembly, segments: tuple[Segment, ...], level: int, copies: list[int], wrapping: Wrapping
) -> None:
    """Add the stages of a range that runs on equal components `copies` (indices at this level)."""
    problem, sets = work.problem, work.problem.sets
    count = work.topology.levels[level - 1][0]
    bytes_per_s = work.topology.levels[level - 1][1]
    kinds = problem.parts.type_of[level - 1]
    free = {copy: list(range(copy * count, (copy + 1) * count)) for copy in copies}
    for segment in segments:
        of_copies: list[list[int]] = []
        for copy in copies:
            of_copies.append([])
            for kind, wanted in enumerate(segment.part):
                chosen = [child for child in free[copy] if kinds[child] == kind][:wanted]
                assert len(chosen) == wanted, "the tables gave away more components than there are"
                of_copies[-1] += chosen
                free[copy] = [child for child in free[copy] if child not in chosen]
        # Replicas take minibatches in turn: in this order a minibatch stays inside its copy from stage to stage.
        taken = [child for turn in zip(*of_copies, strict=True) for child in turn]
        m = sum(segment.part)
        weight_bytes = float(sets.parameter_bytes[segment.last] - sets.parameter_bytes[segment.first])
        # The recurrence bottoms out in a range without a cut: that is the first segment.
        if segment is segments[0]:
            exchange_s = float(
                uncut_exchange_seconds.py_func(
                    problem.model, m, weight_bytes, bytes_per_s, problem.inner_count(level)
                )
            )
        else:
            exchange_s = float(exchange_seconds.py_func(problem.model, m, weight_bytes, bytes_per_s))
        first_stage = len(work.drafts) + 1
        if segment is not segments[0]:
            link_s = cut_seconds.py_func(
                problem.model, sets.cut_bytes[segment.first], sets.cut_bytes[segment.last], m, bytes_per_s
            )
            moved = float(sets.cut_bytes[segment.first])
            seconds = float(wrapped(problem.model, link_s, _without_exchange(problem.model, wrapping)))
            work.terms.append(Term(Source.ACTIVATIONS, first_stage - 1, first_stage, level, moved, seconds))
        inside: Wrapping = ((m, exchange_s), *wrapping)
        if segment.inner is not None:
            _place(work, segment.inner, level - 1, taken, inside)
        else:
            _place_alone(work, segment, level, taken, inside)
        if m > 1 and problem.model == THESIS:
            around = _without_exchange(problem.model, wrapping)
            seconds = float(wrapped(problem.model, exchange_s / m, around))
            work.terms.append(
                Term(Source.WEIGHTS, first_stage, len(work.drafts), level, weight_bytes, seconds)
            )


def _place_alone(work: _Assembly, segment: Segment, level: int, taken: list[int], wrapping: Wrapping) -> None:
    """One stage on all devices of the components `taken` of level - 1."""
    problem, sets = work.problem, work.problem.sets
    weight_bytes = float(sets.parameter_bytes[segment.last] - sets.parameter_bytes[segment.first])
    stage = len(work.drafts) + 1
    children = taken
    for below in range(level - 1, 0, -1):
        count, bytes_per_s = work.topology.levels[below - 1]
        exchange_s = float(
            uncut_exchange_seconds.py_func(
                problem.model, count, weight_bytes, bytes_per_s, problem.inner_count(below)
            )
        )
        if count > 1 and problem.model == THESIS:
            around = _without_exchange(problem.model, wrapping)
            seconds = float(wrapped(problem.model, exchange_s / count, around))
            work.terms.append(Term(Source.WEIGHTS, stage, stage, below, weight_bytes, seconds))
        wrapping = ((count, exchange_s), *wrapping)
        children = [c * count + i for i in range(count) for c in children]
    work.drafts.append(_Draft(segment.first, segment.last, children))
    work.leaves.append(wrapping)


def _stage(work: _Assembly, draft: _Draft, behind: int) -> Stage:
    problem, sets = work.problem, work.problem.sets
    i, j = draft.first, draft.last
    d = in_flight(behind, len(draft.devices))
    speed = min(work.speeds[device] for device in draft.devices)
    seconds, memory_bytes, recomputes = problem.leaf(i, j, d, speed)
    assert np.isfinite(seconds), "the tables chose a stage that does not fit"
    forward_s = float(sets.forward_s[j] - sets.forward_s[i]) / speed
    return Stage(
        layers=sets.layers(i, j),
        devices=tuple(draft.devices),
        forward_s=forward_s,
        # Sums of layers without a backward may be off by a bit.
        backward_s=max(0.0, float(seconds) - forward_s),
        parameter_bytes=float(sets.parameter_bytes[j] - sets.parameter_bytes[i]),
        activation_bytes=float(sets.activation_bytes[j] - sets.activation_bytes[i]),
        input_bytes=float(sets.cut_bytes[i] if i else problem.input_bytes),
        output_bytes=float(sets.cut_bytes[j]),
        in_flight=problem.memory.held(d)[0],
        memory_bytes=float(memory_bytes),
        recompute=bool(recomputes),
    )


def alone_seconds(problem: Problem, speeds: tuple[float, ...]) -> float:
    """Data parallelism on every device by the cost model: one stage at every level; infinite if it does
    not fit."""
    sets = problem.sets
    seconds = problem.leaf(0, len(sets) - 1, 1, min(speeds))[0]
    weight_bytes = float(sets.parameter_bytes[-1])
    for level, (count, bytes_per_s) in enumerate(problem.parts.topology.levels, start=1):
        exchange_s = uncut_exchange_seconds.py_func(
            problem.model, count, weight_bytes, bytes_per_s, problem.inner_count(level)
        )
        seconds = stage_seconds.py_func(problem.model, seconds, count, exchange_s)
    return float(seconds)
