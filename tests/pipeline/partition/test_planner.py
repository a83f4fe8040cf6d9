"""Plans: shapes, text, several at once, limits and words."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.compare import memory_at
from pipeline.partition.plan import PlanError, parse_plan
from pipeline.partition.planner import (
    Options,
    PartitionError,
    data_parallel_plan,
    partition,
    plans_for_machines,
    top_plans,
)
from pipeline.profile.layers import Layer, Profile, chain, read, write
from pipeline.topology.file import read_topology
from pipeline.topology.levels import Topology, TopologyError, parse_bytes, parse_topology

PROFILES = Path(__file__).resolve().parents[4] / "shared" / "data" / "profiles"
RELEASED_MS = {
    "vgg16": (170.08, 66.89, 65.77),
    "alexnet": (22.19, 15.10, 9.68),
    "resnet18": (65.92, 23.49, 18.36),
    "gnmt": (25.87, 11.08, 8.86),
}
CLUSTERS = ("4x12e9", "4x12e9,4x1.25e9", "8x30e9,2x3.125e9")


def convolutional() -> Profile:
    """Heavy computing and small weights first, then the reverse: as VGG."""
    return chain([8.0, 8.0, 8.0, 1.0, 1.0], [9.0, 4.0, 1.0, 1.0, 1.0], [0.1, 0.1, 0.1, 40.0, 20.0])


@pytest.mark.parametrize("name", RELEASED_MS)
def test_at_least_as_good_as_the_released_optimizer(name: str) -> None:
    if not PROFILES.exists():
        pytest.skip("the recorded profiles are not on this machine")
    profile = read(PROFILES / f"{name}.json")
    for text, released_ms in zip(CLUSTERS, RELEASED_MS[name], strict=True):
        plan = partition(profile, parse_topology(text), cost_model="released")
        # The released figures are rounded to 0.01 ms.
        assert plan.seconds_per_minibatch * 1e3 <= released_ms + 0.005
        by_prefix = partition(profile, parse_topology(text), cost_model="released", prefixes_only=True)
        assert plan.seconds_per_minibatch <= by_prefix.seconds_per_minibatch


def test_vgg_on_cluster_a_is_the_printed_12_1() -> None:
    if not PROFILES.exists():
        pytest.skip("the recorded profiles are not on this machine")
    plan = partition(read(PROFILES / "vgg16.json"), parse_topology(CLUSTERS[1]))
    assert plan.config == "12-1"
    assert plan.workers == 13


def test_a_plan_says_where_its_numbers_come_from() -> None:
    plan = partition(convolutional(), Topology(((4, 10.0),)))
    assert plan.seconds_per_minibatch == max(term.seconds for term in plan.terms)
    assert plan.config == "3-1"
    assert plan.single_seconds == 26.0
    assert plan.stages[0].devices == (0, 1, 2)
    servers = partition(convolutional(), Topology(((2, 10.0), (2, 10.0))))
    for stage in servers.stages:
        assert servers.machines(stage) == tuple(sorted({device // 2 for device in stage.devices}))
    text = plan.explain()
    assert "Slowest: computing in stage 1, 8000.000 ms." in text
    assert "twice as fast" in text
    assert plan.data_parallel_seconds == pytest.approx(max(26, 2 * 3 * 60.3 / 10) / 4)


def test_a_minibatch_stays_on_the_machine_whose_pipeline_it_is_in() -> None:
    """Replicas take minibatches in turn, so their order decides whether activations cross between machines."""
    plan = partition(chain([2.0, 1.0], [4.0, 1.0], [0.1, 16.0]), Topology(((3, 20.0), (2, 40.0))))
    assert plan.config == "4-2"
    first, last = plan.stages
    assert [device // 3 for device in first.devices] == 2 * [device // 3 for device in last.devices]


def test_data_parallel_plans_cost_what_the_plan_says() -> None:
    topology = Topology(((2, 10.0), (2, 5.0)))
    for model in ("thesis", "released"):
        whole = data_parallel_plan(convolutional(), topology, Options(cost_model=model))
        assert whole is not None
        assert whole.config == "data parallel"
        assert sorted(whole.stages[0].devices) == [0, 1, 2, 3]
        assert whole.seconds_per_minibatch == pytest.approx(whole.data_parallel_seconds)
    mixed = data_parallel_plan(convolutional(), topology, Options(device_speed=[1, 2, 1, 1]))
    assert mixed is not None
    assert mixed.workers == 4


def test_text_parses_back_to_the_same_plan() -> None:
    rng = np.random.default_rng(0)
    for model, memory in itertools.product(("thesis", "released"), (None, 400.0)):
        profile = chain(rng.uniform(1, 9, 7), rng.uniform(1, 9, 7), rng.uniform(1, 9, 7))
        plan = partition(profile, Topology(((2, 3.0), (3, 1.0))), cost_model=model, memory_bytes=memory)
        assert parse_plan(plan.to_text()) == plan
    with pytest.raises(PlanError, match="first line"):
        parse_plan("no plan")
    with pytest.raises(PlanError, match="line 9"):
        parse_plan("\n".join([*plan.to_text().splitlines()[:8], "stage 1: layers=x", ""]))
    with pytest.raises(PlanError, match="does not parse: 'stage 1"):
        parse_plan(plan.to_text().replace("recompute=false", 'recompute="no"'))
    for before, after in (
        ("layers=", "layers=1-0"),
        ("parameter_bytes=", 'parameter_bytes="a"'),
        ("in_flight=", "in_flight=null"),
    ):
        text = re.sub(rf"{before}\S*", after, plan.to_text(), count=1)
        with pytest.raises(PlanError, match="does not parse: 'stage 1"):
            parse_plan(text)
    with pytest.raises(PlanError, match="lacks a line"):
        parse_plan("plan 1\n")


def test_top_plans_are_different_and_sorted_and_complete() -> None:
    profile = chain([3.0, 5.0, 4.0], [1.0, 2.0, 1.0], [1.0, 2.0, 3.0])
    plans = top_plans(profile, Topology(((2, 4.0),)), 50)
    seconds = [plan.seconds_per_minibatch for plan in plans]
    assert seconds == sorted(seconds)
    # One stage on one or two devices, or two stages cut behind layer 1 or 2: and nothing else.
    assert sorted(plan.config for plan in plans) == ["data parallel", "one device", "straight", "straight"]


def test_several_counts_of_machines_in_one_call() -> None:
    topology = Topology(((2, 10.0), (3, 2.0)))
    plans = plans_for_machines(convolutional(), topology, [2, 3, 4])
    for count, plan in plans.items():
        alone = partition(convolutional(), topology.with_outer_count(count))
        assert plan.seconds_per_minibatch == alone.seconds_per_minibatch
        assert plan.topology == str(topology.with_outer_count(count))
        assert plan.data_parallel_seconds == alone.data_parallel_seconds


def test_faster_links_in_the_explanation_are_the_plan_on_those_links() -> None:
    profile = chain([1.0, 1.0], [10.0, 1.0], [0.0, 0.0])
    plan = partition(profile, Topology(((2, 8.0),)), straight=True, max_stages=2)
    assert plan.seconds_per_minibatch == 2.0
    slow = partition(profile, Topology(((2, 16.0),)), straight=True)
    assert slow.seconds_per_minibatch == 1.25


def test_memory_uses_the_workers_behind() -> None:
    profile = chain([4.0, 4.0, 4.0], [10.0, 10.0, 10.0], [1.0, 1.0, 1.0])
    free = partition(profile, Topology(((3, 1e9),)), straight=True)
    # d (w + a) + 2 w with d = 3, 2, 1 from the front.
    assert [stage.memory_bytes for stage in free.stages] == [3 * 11 + 2, 2 * 11 + 2, 11 + 2]
    # A data-parallel stage of three layers takes 33 + 6: less than the pipeline's first stage.
    tight = partition(profile, Topology(((3, 1e9),)), memory_bytes=34)
    assert max(stage.memory_bytes for stage in tight.stages) <= 34
    assert partition(profile, Topology(((3, 1e9),)), memory_bytes=39).config == "data parallel"
    saved = partition(profile, Topology(((3, 1e9),)), memory_bytes=34, straight=True, recompute="auto")
    assert saved.seconds_per_minibatch >= tight.seconds_per_minibatch or saved.stages[0].recompute


def test_with_a_flush_a_stage_has_one_version_and_a_tree_of_sums() -> None:
    profile, topology = chain([4.0] * 3, [10.0] * 3, [1.0] * 3), Topology(((3, 1e9),))

    def found(group: int, recompute: bool = False) -> list[float]:
        options = Options(straight=True, optimizer_factor=2.0, group=group, recompute=recompute)
        (plan,) = top_plans(profile, topology, 1, options)
        assert [stage.in_flight for stage in plan.stages] == [min(d, group) for d in (3, 2, 1)]
        return [stage.memory_bytes for stage in plan.stages]

    # Of minibatches what a stage without a flush has; weights, state and a gradient, and one sum for each level.
    assert found(8) == [30 + 1 + 3 + 3, 20 + 1 + 3 + 3, 10 + 1 + 3 + 3]
    assert found(2) == [20 + 1 + 3 + 1, 20 + 1 + 3 + 1, 10 + 1 + 3 + 1]
    assert found(1) == [10 + 1 + 3] * 3
    assert found(1, recompute=True) == [10 + 1 + 3, 10 + 10 + 1 + 3, 10 + 10 + 1 + 3]
    with pytest.raises(PartitionError, match="alone needs"):
        top_plans(profile, topology, 1, Options(memory_bytes=16, group=64))


@pytest.mark.slow
def test_exact_limits_that_are_too_large_fall_back_with_a_bound() -> None:
    rng = np.random.default_rng(1)
    n = 120
    profile = chain(rng.uniform(1, 9, n), rng.uniform(1, 9, n), rng.uniform(1, 9, n))
    plan = partition(profile, Topology(((8, 100.0), (8, 50.0))), memory_bytes=900.0)
    assert any("Too large to be exact" in note for note in plan.notes)
    assert 0 <= plan.gap < 0.1
    assert max(stage.memory_bytes for stage in plan.stages) <= 900
    assert f"at most {plan.gap:.1%} slower" in plan.explain()


def test_very_branching_models_fall_back_to_prefixes_with_a_bound() -> None:
    rng = np.random.default_rng(2)
    layers = tuple(Layer(f"l{i}", *rng.uniform(0.1, 1, 2), *rng.uniform(0, 9, 2)) for i in range(16))
    plan = partition(Profile("wide", layers, ()), Topology(((4, 100.0),)))
    assert any("only at prefixes" in note for note in plan.notes)
    assert plan.lower_bound_seconds == pytest.approx(plan.single_seconds / 4)


@pytest.mark.slow
def test_a_memory_limit_makes_no_search_exact_that_is_too_large_without_it() -> None:
    rng = np.random.default_rng(4)
    layers = tuple(Layer(f"l{i}", *rng.uniform(0.1, 1, 2), *rng.uniform(0, 9, 2)) for i in range(30))
    edges = tuple((i, i + 3) for i in range(27))  # three chains, 1,331 closed sets
    topology = Topology(((8, 100.0), (8, 100.0)))
    plan = partition(Profile("three chains", layers, edges), topology, memory_bytes=1e9)
    assert any("Too large to be exact" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_stages": 9}, "9 stages are more than the 5 layers"),
        ({"max_stages": 0}, "at least one stage"),
        ({"cost_model": "mine"}, "thesis, released"),
        ({"memory_bytes": 0}, "positive"),
        ({"memory_bytes": 50.0}, r"layer 3 \(layer3\) alone needs"),
        ({"memory_bytes": 130.0, "straight": True}, "no plan on 4 devices fits|alone needs"),
        ({"recompute": "maybe"}, "recompute must be"),
        ({"optimizer_factor": -1.0}, "optimizer factor"),
    ],
)
def test_bad_options_are_one_sentence(options: dict, words: str) -> None:
    with pytest.raises(PartitionError, match=words) as caught:
        partition(convolutional(), Topology(((4, 10.0),)), **options)
    assert "\n" not in str(caught.value)


def test_what_would_help_when_no_plan_fits() -> None:
    profile = chain([1.0] * 4, [10.0] * 4, [1.0] * 4)
    with pytest.raises(PartitionError, match=r"recomputing.*there is a plan"):
        partition(profile, Topology(((2, 1.0),)), memory_bytes=15)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "COUNTxBYTES"),
        ("4", "COUNTxBYTES"),
        ("ax3", "COUNTxBYTES"),
        ("0x1e9", "1 or more"),
        ("4x-1", "positive"),
    ],
)
def test_bad_topologies_are_one_sentence(text: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        parse_topology(text)


def test_topologies_print_and_parse() -> None:
    for text in ("4x12e9,4x1.25e9", "2x3.5", "8x30e9,2x3.125e9,5x0.125"):
        assert str(parse_topology(text)) == text
    assert parse_topology("4x12e9,4x1e9").link_level(3, 4) == 2
    assert [parse_bytes(t, "m") for t in ("16GB", "1 KiB", "5")] == [16e9, 1024, 5]
    with pytest.raises(TopologyError, match="--memory takes a size"):
        parse_bytes("lots", "--memory")


@pytest.mark.parametrize("group", [None, 1, 4])
def test_memory_at_the_planned_number_in_flight_is_the_plans(group: int | None) -> None:
    options = Options(straight=True, group=group)
    plan = top_plans(convolutional(), Topology(((4, 1e9),)), 1, options)[0]
    assert memory_at(plan, options, len(plan.stages)) == [stage.memory_bytes for stage in plan.stages]


@pytest.mark.parametrize("count", ["2.5", ".nan", ".inf", "true"])
def test_a_level_has_a_whole_number_of_components(count: str, tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(f"levels: [{{count: {count}, bytes_per_s: 1e9}}]\n")
    with pytest.raises(TopologyError, match="number, found"):
        read_topology(path)


def test_speeds_must_match_the_devices() -> None:
    with pytest.raises(TopologyError, match="found 2, the topology has 4"):
        partition(convolutional(), Topology(((4, 1.0),)), device_speed=[1, 2])
    with pytest.raises(TopologyError, match="positive"):
        partition(convolutional(), Topology(((2, 1.0),)), device_speed=[1, 0])


def test_numbers_of_numpy_are_as_good(tmp_path: Path) -> None:
    """As those of a notebook: they ended in tracebacks of numpy's and json's."""
    seconds, sizes, weights = np.full(70, 3.0), np.full(70, 8), np.full(70, 2, np.int32)
    plain = chain(seconds.tolist(), sizes.tolist(), weights.tolist())
    edges = np.array([(i, i + 1) for i in range(69)])
    profile = replace(chain(seconds, sizes, weights), edges=tuple(map(tuple, edges)))
    topology = Topology(((np.int64(3), np.float64(1e3)),))
    assert partition(profile, topology) == partition(plain, parse_topology("3x1e3"))
    few, speeds = chain(seconds[:3], sizes[:3], weights[:3]), np.array([1.0, 2.0, 1.5], np.float32)
    plan = partition(few, topology, device_speed=speeds)
    assert parse_plan(plan.to_text()) == plan == partition(few, topology, device_speed=speeds.tolist())
    write(replace(profile, batch=np.int64(8), input_bytes=np.int64(5)), tmp_path / "profile.json")
    assert read(tmp_path / "profile.json").edges == plain.edges
    assert str(Topology(((3.0, 1e3),))) == "3x1000.0"
    assert list(plans_for_machines(plain, topology, np.array([1, 2]))) == [1, 2]


def test_data_parallelism_that_does_not_fit_says_so() -> None:
    profile = chain([4.0] * 3, [10.0] * 3, [1.0] * 3)
    plan = partition(profile, Topology(((3, 1e9),)), memory_bytes=36)
    assert "data parallelism does not fit" in plan.explain()
    assert data_parallel_plan(profile, Topology(((3, 1e9),)), Options(memory_bytes=36)) is None


def test_data_parallelism_does_not_fit_beside_a_plan_that_the_limit_does_not_change() -> None:
    profile, topology = chain([4.0, 2.0], [1.0, 1.0], [21.0, 35.0]), Topology(((3, 4.0),))
    free, limited = partition(profile, topology), partition(profile, topology, memory_bytes=157)
    assert limited.stages == free.stages
    assert math.isfinite(free.data_parallel_seconds)
    assert math.isinf(limited.data_parallel_seconds)


def test_more_devices_than_can_be_planned_are_refused() -> None:
    many = parse_topology("1000000x1e9")
    with pytest.raises(TopologyError, match="1,000,000 devices; expected at most 4,096"):
        partition(convolutional(), many)
    with pytest.raises(TopologyError, match="at most"):
        plans_for_machines(convolutional(), Topology(((4, 1.0),)), [2, 5000])


def test_weights_that_two_stages_share_are_said_to_be_missing_from_times_and_memory() -> None:
    profile = replace(chain([4.0] * 4, [1.0] * 4, [8.0, 1.0, 1.0, 0.0]), tied=((0, 3),))
    plan = partition(profile, Topology(((2, 1.0),)), straight=True)
    assert plan.stages[1].parameter_bytes == 1  # without the shared 8
    assert any("stages 1, 2" in note and "times and the memory" in note for note in plan.notes)
