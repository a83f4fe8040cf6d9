"""Which machine holds which layers, against every way of cutting."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.protocol.job import PipelineMode, PipelineRules
from agileml.core.protocol.view import StageGroup
from agileml.core.stage.pipeline_stages import (
    cut_stages,
    least_slowest,
    least_slowest_replicated,
    place_stages,
)
from agileml.core.stage.placement import Machines
from straggler.coverage import ranges
from tests.thorough import examples

NODES = ["a", "b", "c", "d", "e"]


@settings(deadline=None, max_examples=examples(200))
@given(weights=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=8), data=st.data())
def test_no_cut_has_a_faster_slowest_stage(weights: list[float], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(weights)))
    alike = [1.0] * stages
    speeds = data.draw(st.just(alike) | st.lists(st.floats(0.1, 3.0), min_size=stages, max_size=stages))
    found = least_slowest(weights, stages, () if speeds is alike else speeds)
    assert [a for a, _ in found] == [0, *(b for _, b in found[:-1])]
    assert found[-1][1] == len(weights)
    assert all(a < b for a, b in found)

    def slowest(ranges: Iterable[tuple[int, int]]) -> float:
        return max(sum(weights[a:b]) / speed for (a, b), speed in zip(ranges, speeds, strict=True))

    cuts = combinations(range(1, len(weights)), stages - 1)
    best = min(slowest(pairwise((0, *ends, len(weights)))) for ends in cuts)
    assert slowest(found) <= best * (1 + 1e-9) + 1e-12


def test_a_machine_of_half_the_speed_gets_half_the_layers_and_machines_keep_their_places() -> None:
    rules = PipelineRules((1.0,) * 7, follows_speeds=True)
    machines = Machines(("r",), ("a", "b", "c", "d"), {"a": 1.0, "b": 0.5, "c": 1.0, "d": 1.0})
    before = stages_before(["c", "b", "a"], 7)
    found = place_stages(machines, rules, 8, before, (), ("r",) * 7, ("c",) * 8, ("",) * 8)
    shape = [(stage.machines, stage.stop - stage.first) for stage in found.pipeline]
    assert shape == [(("c",), 2), (("b",), 1), (("a",), 2), (("d",), 2)]
    alike = place_stages(
        machines, PipelineRules((1.0,) * 7), 8, before, (), ("r",) * 7, ("c",) * 8, ("",) * 8
    )
    assert max(stage.stop - stage.first for stage in alike.pipeline) == 2
    assert [stage.stop - stage.first for stage in alike.pipeline] != [2, 1, 2, 2]


@settings(deadline=None, max_examples=examples(200))
@given(
    weights=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6).map(tuple),
    most=st.none() | st.integers(1, 6),
    before=st.lists(st.sampled_from(NODES), unique=True, max_size=5),
    transient=st.lists(st.sampled_from(NODES), unique=True, max_size=5).map(tuple),
)
def test_every_partition_has_a_stage_and_machines_keep_their_order(
    weights: tuple[float, ...], most: int | None, before: list[str], transient: tuple[str, ...]
) -> None:
    count = min(len(before), len(weights))
    owner = [before[min(p, count - 1)] if count else "" for p in range(len(weights))]
    had = stages_before(before[:count], len(weights))
    backup, slices = [""] * len(weights), [""] * 8
    machines = Machines(("r", "s"), transient)
    found = place_stages(machines, PipelineRules(weights, most), 8, had, owner, backup, slices, slices)
    stages = [node for stage in found.pipeline for node in stage.machines]
    assert found.owner == tuple(
        stage.machines[0] for stage in found.pipeline for _ in range(stage.first, stage.stop)
    )
    nodes = transient or ("r", "s")
    assert len(stages) == min(len(nodes), len(weights), most or len(nodes))
    assert set(stages) <= set(nodes)
    assert len(found.owner) == len(found.backup) == len(weights)
    assert set(found.backup) <= {"r", "s"}
    assert set(found.worker) == set(stages) or len(stages) > 8
    stayed = [node for node in dict.fromkeys(owner) if node in stages]
    assert stages[: len(stayed)] == stayed
    assert (found.stage == 3) == bool(transient)


def test_the_reason_names_machines_and_partitions() -> None:
    rules = PipelineRules((1.0, 1.0, 2.0))
    found = place_stages(Machines(("r",), ("a", "b")), rules, 8, (), [""] * 3, [""] * 3, [""] * 2, [""] * 2)
    assert found.owner == ("a", "a", "b")
    assert found.reason == "a pipeline of 2 stages, partitions 0-1 at a, 2-2 at b"
    rules = PipelineRules((1.0, 1.0, 1.0), replicas=(2, 1))
    machines = Machines(("r",), ("a", "b", "c"), {"a": 3.0, "b": 1.0})
    found = place_stages(machines, rules, 8, (), [""] * 3, [""] * 3, [""] * 2, [""] * 2)
    assert found.reason == "a pipeline of 2 stages, partitions 0-1 at a (6 units) and b (2 units), 2-2 at c"
    assert found.owner == ("a", "b", "c")


def stages_before(nodes: list[str], partitions: int) -> tuple[StageGroup, ...]:
    """One machine a stage, the last with all partitions that are left."""
    ends = [*range(1, len(nodes)), partitions]
    return tuple(
        StageGroup(first, stop, ((node, 255),))
        for node, (first, stop) in zip(nodes, pairwise([0, *ends]), strict=False)
    )


@settings(deadline=None, max_examples=examples(200))
@given(data=st.data())
def test_no_cut_and_no_dealing_of_machines_is_faster(data: st.DataObject) -> None:
    weights = tuple(data.draw(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6)))
    most = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=len(weights))))
    machines = data.draw(st.integers(len(most), sum(most)))
    ends, counts = least_slowest_replicated(weights, most, machines)
    assert [a for a, _ in ends] == [0, *(b for _, b in ends[:-1])] and ends[-1][1] == len(weights)
    assert sum(counts) == machines and all(1 <= c <= m for c, m in zip(counts, most, strict=True))

    def slowest(cuts: tuple[int, ...], dealt: tuple[int, ...]) -> float:
        edges = pairwise((0, *cuts, len(weights)))
        return max(sum(weights[a:b]) / count for (a, b), count in zip(edges, dealt, strict=True))

    best = min(
        slowest(cuts, dealt)
        for cuts in combinations(range(1, len(weights)), len(most) - 1)
        for dealt in product(*(range(1, limit + 1) for limit in most))
        if sum(dealt) == machines
    )
    found = slowest(tuple(b for _, b in ends[:-1]), counts)
    assert found <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    ("machines", "most", "replicas", "wanted"),
    [
        (3, None, (2, 1), (2, 1)),
        (2, None, (2, 1), (1, 1)),
        (1, None, (2, 1), (1,)),
        (9, None, (2, 1), (2, 1)),  # the others stand by
        (9, None, 1, (1, 1, 1, 1)),
        (9, None, 2, (2, 2, 2, 2)),
        (6, None, 2, (2, 2, 1, 1)),
        (4, 2, 2, (2, 2)),  # two pipelines side by side
        (5, 1, 8, (4,)),  # there are four units
    ],
)
def test_machines_beyond_the_stages_become_replicas(
    machines: int, most: int | None, replicas: int | tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    rules = PipelineRules((1.0, 1.0, 1.0, 1.0), most, replicas=replicas)
    assert cut_stages(rules, machines, 4).replicas == wanted


@pytest.mark.parametrize(
    ("mode", "wanted"), [("flush", []), ("stash", [0, 2]), ("none", [0, 2]), ("vertical_sync", [0, 2])]
)
def test_stages_with_replicas_overlap_their_exchange_but_for_the_last_and_with_a_flush(
    mode: str, wanted: list[int]
) -> None:
    rules = PipelineRules((1.0,) * 4, mode=PipelineMode(mode), replicas=(2, 1, 2, 2))
    fields = [""] * 4, [""] * 4, [""] * 4, [""] * 4
    found = place_stages(Machines(("r",), tuple("abcdefg")), rules, 4, (), *fields).pipeline
    assert [number for number, stage in enumerate(found) if stage.overlaps] == wanted


@settings(deadline=None, max_examples=examples(300))
@given(data=st.data())
def test_machines_stay_at_their_stage_and_share_all_units(data: st.DataObject) -> None:
    weights = tuple(data.draw(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6)))
    replicas = data.draw(st.integers(1, 3) | st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple))
    rules = PipelineRules(weights, data.draw(st.none() | st.integers(1, 3)), replicas=replicas)
    fields = [""] * len(weights), [""] * 8, [""] * 8
    some = st.lists(st.sampled_from([*NODES, "f", "g"]), unique=True, min_size=1).map(tuple)
    first = place_stages(Machines(("r",), data.draw(some)), rules, 8, (), [""] * len(weights), *fields)
    machines = Machines(("r",), data.draw(some), {"a": 4.0, "b": 0.5})
    found = place_stages(machines, rules, 8, first.pipeline, first.owner, *fields)
    check(found.pipeline, found.owner)
    again = place_stages(machines, rules, 8, found.pipeline, found.owner, *fields)
    assert (again.pipeline, again.owner) == (found.pipeline, found.owner), "machines move for nothing"


def check(pipeline: tuple[StageGroup, ...], owner: tuple[str, ...]) -> None:
    """The stages have each partition once, and each unit once."""
    assert [stage.first for stage in pipeline] == [0, *(stage.stop for stage in pipeline[:-1])]
    at_work = [node for stage in pipeline for node in stage.machines]
    assert len(set(at_work)) == len(at_work)
    for stage in pipeline:
        assert sum(units for _, units in stage.replicas) == stage.all_units == 255
        assert all(units and len(ranges(units)) == 1 for _, units in stage.replicas)
        owned = [owner[stage.first : stage.stop].count(node) for node in stage.machines]
        assert sum(owned) == stage.stop - stage.first and max(owned) - min(owned) <= 1
