"""The partitioner against every plan there is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.partition.assemble import assemble
from pipeline.partition.closed_sets import closed_sets
from pipeline.partition.components import components
from pipeline.partition.memory import MemoryRules
from pipeline.partition.planner import Options, PartitionError, partition, top_plans
from pipeline.partition.search import best_first
from pipeline.partition.tables import Problem, Tables
from pipeline.profile.layers import Layer, Profile
from pipeline.topology.levels import Topology
from tests.pipeline.partition.brute_force import Limits, _closed, _limited_cost, _pipelines, best_seconds

TOPOLOGIES = ((2,), (3,), (4,), (2, 2), (3, 2), (2, 3), (1, 3), (5,), (6,))


def random_profile(rng: np.random.Generator, layers: int, *, branches: bool) -> Profile:
    """Whole numbers of quarters, so that sums are exact in any order."""

    def draw(high: int) -> float:
        return float(rng.integers(0, high)) / 4

    edges = {(i, i + 1) for i in range(layers - 1)}
    if branches:
        edges = {(a, b) for a in range(layers) for b in range(a + 1, layers) if rng.random() < 0.35}
        edges |= {(int(rng.integers(0, b)), b) for b in range(1, layers) if rng.random() < 0.8}
    free = rng.random(layers) < (0.25 if branches else 0.0)
    free[rng.integers(layers)] = False
    made = tuple(
        Layer(f"l{i}", 0, 0, 0, 0)
        if free[i]
        else Layer(
            f"l{i}",
            draw(20) + 0.25,
            draw(40),
            draw(30) * (rng.random() < 0.8),
            draw(40) * (rng.random() < 0.7),
        )
        for i in range(layers)
    )
    return Profile("random", made, tuple(sorted(edges)), input_bytes=draw(30))


def random_topology(rng: np.random.Generator, counts: tuple[int, ...]) -> Topology:
    return Topology(tuple((count, float(rng.choice([0.5, 1, 2, 4, 16]))) for count in counts))


def check(seed: int) -> str:
    """One random case; returns what kind it was."""
    rng = np.random.default_rng(seed)
    counts = TOPOLOGIES[rng.integers(len(TOPOLOGIES))]
    kind = ["free", "memory", "stages", "straight", "recompute", "prefixes"][rng.integers(6)]
    tied = kind in ("memory", "stages", "recompute")
    layers = int(rng.integers(1, 6 if tied else 8))
    if tied and math.prod(counts) > 4:
        layers = min(layers, 4)
    profile = random_profile(rng, layers, branches=kind != "prefixes" and bool(rng.random() < 0.6))
    topology = random_topology(rng, counts)
    model = ("thesis", "released")[rng.integers(2)]
    limits = Limits(
        memory_bytes=float(rng.integers(10, 160)) if kind in ("memory", "recompute") else None,
        optimizer_factor=float(rng.integers(0, 3)) / 2,
        recompute=[True, "auto"][rng.integers(2)] if kind == "recompute" else False,
        straight=kind == "straight",
        max_stages=int(rng.integers(1, layers + 1)) if kind == "stages" else None,
        prefixes_only=kind == "prefixes",
    )
    expected = best_seconds(profile, topology, model, limits)
    try:
        plan = partition(
            profile,
            topology,
            cost_model=model,
            memory_bytes=limits.memory_bytes,
            optimizer_factor=limits.optimizer_factor,
            recompute=limits.recompute,
            straight=limits.straight,
            max_stages=limits.max_stages,
            prefixes_only=limits.prefixes_only,
        )
        found = plan.seconds_per_minibatch
        assert sorted(i for stage in plan.stages for i in stage.layers) == list(range(layers))
    except PartitionError:
        found = math.inf
    assert found == pytest.approx(expected, rel=1e-12), f"seed {seed}: {kind} {model} {counts} {profile}"
    return kind


def test_equals_brute_force() -> None:
    kinds = [check(seed) for seed in range(60)]  # the long version is below
    assert len(set(kinds)) == 6


@pytest.mark.slow
def test_equals_brute_force_in_2000_cases(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = [check(seed) for seed in range(1_000, 3_000)]
    with capsys.disabled():
        print(f"\npartition: {len(kinds)} of 2000 random cases equal brute force")


def test_the_most_replicas_of_a_stage_equal_brute_force() -> None:
    """Chains have a search of their own."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        profile = random_profile(rng, int(rng.integers(1, 6)), branches=seed % 2 == 0)
        topology, most = random_topology(rng, (int(rng.integers(2, 7)),)), int(rng.integers(1, 5))
        model = ("thesis", "released")[rng.integers(2)]
        plan = top_plans(profile, topology, 1, Options(cost_model=model, max_replicas=most))[0]
        assert max(stage.replicas for stage in plan.stages) <= most
        expected = best_seconds(profile, topology, model, Limits(max_replicas=most))
        assert plan.seconds_per_minibatch == pytest.approx(expected, rel=1e-12), seed


def test_the_best_few_plans_are_the_best_few_of_all() -> None:
    """On one level every choice of cuts and replicas is a plan of its own."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        topology = random_topology(rng, ((2,), (3,), (4,))[rng.integers(3)])
        profile = random_profile(rng, int(rng.integers(1, 5)), branches=False)
        model = ("thesis", "released")[rng.integers(2)]
        limits = Limits(memory_bytes=float(rng.integers(30, 200)) if seed % 2 else None)
        whole = (1 << len(profile.layers)) - 1
        sets = _closed(profile, False)
        costs = sorted(
            cost
            for pipeline in _pipelines(topology, sets, 1, 0, whole, topology.levels[0][0], False)
            if (cost := _limited_cost(profile, topology, model, limits, 1, pipeline)) < math.inf
        )
        options = Options(cost_model=model, memory_bytes=limits.memory_bytes)
        try:
            found = [plan.seconds_per_minibatch for plan in top_plans(profile, topology, 6, options)]
        except PartitionError:
            found = []
        assert found == pytest.approx(costs[:6], rel=1e-12), f"seed {seed}"


def test_counting_whole_machines_gives_plans_that_fit_and_are_never_better() -> None:
    found = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        topology = random_topology(rng, ((2, 2), (3, 2), (2, 3))[rng.integers(3)])
        profile = random_profile(rng, int(rng.integers(2, 6)), branches=False)
        limit = float(rng.integers(40, 200))
        problem = Problem(
            closed_sets(profile, 100),
            profile.input_bytes,
            components(topology, None),
            "thesis",
            MemoryRules(limit),
            straight=False,
            max_stages=None,
            whole=True,
        )
        best = next(best_first(Tables(problem), problem.parts.choices[-1][0].all, None), None)
        if best is None:
            continue
        found += 1
        stages, terms = assemble(problem, best[1], (1.0,) * topology.devices)
        assert max(stage.memory_bytes for stage in stages) <= limit
        assert max(term.seconds for term in terms) == best[0]
        exact = partition(profile, topology, memory_bytes=limit)
        assert exact.seconds_per_minibatch <= best[0]
    assert found > 20
