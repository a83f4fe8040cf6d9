"""The work of an exact search, and the searches that replace it where it would take too long."""

from __future__ import annotations

import numpy as np

from pipeline.partition.closed_sets import ClosedSets
from pipeline.partition.components import count_choices
from pipeline.partition.tables import Problem
from pipeline.topology.levels import Topology

# Beyond these the search gives up exactness: closed sets; steps of the general tables, of which two cores do
# about 2.5e7 a second; ways to divide one component with unequal parts.
MAX_STATES = 1_500
MAX_WORK = 2.5e8
MAX_CHOICE_PAIRS = 1_200


def grouped_speeds(
    speeds: tuple[float, ...], topology: Topology
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Speeds rounded down, and up, to so few different ones that the choices can be listed."""
    down = up = speeds
    groups = len(set(speeds))
    while count_choices(topology, down) > MAX_CHOICE_PAIRS and groups > 1:
        groups -= 1
        lowest = np.unique(np.quantile(np.array(speeds), np.arange(groups) / groups, method="lower"))
        group = np.searchsorted(lowest, speeds, side="right") - 1
        highest = [max(s for s, g in zip(speeds, group, strict=True) if g == n) for n in range(len(lowest))]
        down = tuple(float(lowest[g]) for g in group)
        up = tuple(float(highest[g]) for g in group)
    return down, up


def work(problem: Problem) -> float:
    """About how many steps the general tables take."""
    sets = problem.sets
    below = sets.within.sum(axis=0).astype(float)
    pairs = float(sets.within.sum())
    triples = float(sum(below[sets.within[i]].sum() for i in range(len(sets))))
    stages = 1 if problem.max_stages is None else max(2, problem.max_stages)
    total = 0.0
    levels = problem.parts.topology.levels
    for level in range(1, len(levels) + 1):
        splits = sum(len(choices.parts) for choices in problem.parts.choices[level])
        axes = stages * stages / 2 if stages > 1 else 1.0
        if problem.limited:
            axes *= problem.parts.topology.devices / 2
        if problem.counts_devices:
            inner = problem.parts.topology.component_devices(level - 1)
            axes *= problem.parts.topology.component_devices(level) * inner
        # The outermost level needs only the ranges from the start.
        share = triples / 3 if level < len(levels) else pairs
        total += share * splits * axes
    return total


def thinned(sets: ClosedSets, wanted: int) -> ClosedSets:
    """At most `wanted` states of a chain, at even distances in compute."""
    places = np.linspace(0, sets.compute_s[-1], max(2, wanted))
    chosen = sorted({0, len(sets) - 1, *np.searchsorted(sets.compute_s, places, side="left").tolist()})
    index = np.array(chosen)
    return ClosedSets(
        masks=tuple(sets.masks[i] for i in chosen),
        compute_s=sets.compute_s[index],
        forward_s=sets.forward_s[index],
        parameter_bytes=sets.parameter_bytes[index],
        activation_bytes=sets.activation_bytes[index],
        cut_bytes=sets.cut_bytes[index],
        within=sets.within[np.ix_(index, index)],
        is_chain=True,
        is_all=False,
    )
