"""Which machine holds which layers, against every way of cutting."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.exchange.stages import stages_of
from agileml.core.protocol.job import PipelineRules
from agileml.core.stage.pipeline_stages import least_slowest, place_stages
from agileml.core.stage.placement import Machines

NODES = ["a", "b", "c", "d", "e"]


@settings(deadline=None, max_examples=200)
@given(weights=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=8), data=st.data())
def test_no_cut_has_a_lighter_heaviest_stage(weights: list[float], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(weights)))
    found = least_slowest(weights, stages)
    assert [a for a, _ in found] == [0, *(b for _, b in found[:-1])]
    assert found[-1][1] == len(weights)
    assert all(a < b for a, b in found)

    def heaviest(ends: tuple[int, ...]) -> float:
        return max(sum(weights[a:b]) for a, b in pairwise((0, *ends, len(weights))))

    best = min(heaviest(ends) for ends in combinations(range(1, len(weights)), stages - 1))
    assert max(sum(weights[a:b]) for a, b in found) <= best * (1 + 1e-9) + 1e-12


@settings(deadline=None, max_examples=200)
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
    backup, slices = [""] * len(weights), [""] * 8
    machines = Machines(("r", "s"), transient)
    found = place_stages(machines, PipelineRules(weights, most), owner, backup, slices, slices)
    stages = [
        node for node, _, _ in stages_of(found.owner)
    ]  # fails where a machine's layers are not neighbours
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
    found = place_stages(Machines(("r",), ("a", "b")), rules, [""] * 3, [""] * 3, [""] * 2, [""] * 2)
    assert found.owner == ("a", "a", "b")
    assert found.reason == "a pipeline of 2 stages, partitions 0-1 at a, 2-2 at b"
