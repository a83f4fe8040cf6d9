"""Unequal devices: exact against every assignment for few, an honest gap for many."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from pipeline.partition.planner import partition
from pipeline.topology.levels import Topology
from tests.pipeline.partition.brute_force import _between, _closed, _combine, _sum
from tests.pipeline.partition.test_exact import random_profile, random_topology


def best_assignment(profile, topology: Topology, speeds, model: str) -> float:
    """Every way to give sets of components to segments. Components with the same devices may run the same
    pipeline inside; a mixture runs one stage on all of its devices."""
    sets = _closed(profile, False)
    counts = [count for count, _ in topology.levels]

    def kind(level: int, c: int):
        if level == 0:
            return speeds[c]
        return tuple(sorted(repr(kind(level - 1, child)) for child in children(level, c)))

    def children(level: int, c: int) -> range:
        return range(c * counts[level - 1], (c + 1) * counts[level - 1])

    def solo(level: int, c: int, i: int, j: int) -> float:
        if level == 0:
            return (_sum(profile, j & ~i, "forward_s") + _sum(profile, j & ~i, "backward_s")) / speeds[c]
        inner = max(solo(level - 1, child, i, j) for child in children(level, c))
        return _combine(profile, topology, model, level, [(i, j, counts[level - 1], inner)])

    def inside(level: int, taken: tuple[int, ...], i: int, j: int) -> float:
        if level == 0:
            return max(solo(0, c, i, j) for c in taken)
        if len({repr(kind(level, c)) for c in taken}) == 1:
            return best(level, i, j, tuple(children(level, taken[0])), ())
        return max(solo(level, c, i, j) for c in taken)

    def best(level: int, i: int, j: int, free: tuple[int, ...], after: tuple) -> float:
        """Segments are chosen from the last to the first; `after` holds those already chosen."""
        least = math.inf
        for size in range(1, len(free) + 1):
            for taken in itertools.combinations(free, size):
                whole = [(i, j, size, inside(level - 1, taken, i, j)), *after]
                least = min(least, _combine(profile, topology, model, level, whole))
                left = tuple(c for c in free if c not in taken)
                if left:
                    for k in _between(sets, i, j):
                        part = (k, j, size, inside(level - 1, taken, k, j))
                        least = min(least, best(level, i, k, left, (part, *after)))
        return least

    return best(len(counts), 0, (1 << len(profile.layers)) - 1, tuple(range(counts[-1])), ())


@pytest.mark.parametrize(
    "seed", [*range(16), *(pytest.param(n, marks=pytest.mark.slow) for n in range(16, 40))]
)
def test_few_unequal_devices_equal_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = ((2,), (3,), (4,), (2, 2))[rng.integers(4)]
    profile = random_profile(rng, int(rng.integers(1, 5)), branches=bool(rng.random() < 0.5))
    topology = random_topology(rng, counts)
    model = ("thesis", "released")[rng.integers(2)]
    speeds = [float(rng.choice([0.5, 1.0, 2.0])) for _ in range(topology.devices)]
    plan = partition(profile, topology, cost_model=model, device_speed=speeds)
    assert plan.seconds_per_minibatch == pytest.approx(
        best_assignment(profile, topology, speeds, model), rel=1e-12
    )
    assert plan.gap == 0


def test_many_different_speeds_give_a_plan_and_its_gap() -> None:
    rng = np.random.default_rng(5)
    profile = random_profile(rng, 12, branches=False)
    speeds = [float(s) for s in rng.uniform(1, 3, 12)]
    plan = partition(profile, Topology(((12, 100.0),)), device_speed=speeds)
    assert any("different device speeds" in note for note in plan.notes)
    assert 0 <= plan.gap < 1
    slower = partition(profile, Topology(((12, 100.0),)), device_speed=[min(speeds)] * 12)
    faster = partition(profile, Topology(((12, 100.0),)), device_speed=[max(speeds)] * 12)
    assert faster.seconds_per_minibatch <= plan.lower_bound_seconds
    assert plan.seconds_per_minibatch <= slower.seconds_per_minibatch


def test_equal_speeds_scale_the_computing() -> None:
    rng = np.random.default_rng(6)
    profile = random_profile(rng, 6, branches=False)
    topology = Topology(((2, 1e9), (2, 1e9)))
    plain = partition(profile, topology)
    doubled = partition(profile, topology, device_speed=[2.0] * 4)
    assert doubled.seconds_per_minibatch == pytest.approx(plain.seconds_per_minibatch / 2, rel=1e-6)
