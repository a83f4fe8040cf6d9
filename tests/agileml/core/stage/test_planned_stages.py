"""How many stages and replicas the planner gives a job: what the links and the weights ask for, and never too much."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.protocol.job import PipelineMode, PipelineRules
from agileml.core.stage.pipeline_stages import cut_stages, place_stages
from agileml.core.stage.placement import Machines
from agileml.core.stage.planned_stages import ASSUMED_BYTES_PER_S, planned_stages
from tests.thorough import examples

MB = 1 << 20


def rules(
    seconds: list[float],
    sent: list[int],
    weights: list[int],
    *,
    most: int | None = None,
    mode: PipelineMode = PipelineMode.FLUSH,
) -> PipelineRules:
    return PipelineRules(tuple(seconds), most, False, mode, None, tuple(sent), tuple(weights))


# Slow layers with few weights, and at the end a fast one with most of them, as in VGG-16.
FRONT_HEAVY = [0.1, 0.1, 0.1, 0.1], [MB // 8] * 4, [MB // 16, MB // 16, MB // 16, 400 * MB]


def test_a_slow_front_is_replicated_and_heavy_weights_stay_on_one_machine() -> None:
    for mode in (PipelineMode.FLUSH, PipelineMode.STASH):
        found = planned_stages(rules(*FRONT_HEAVY, mode=mode), 4, 16, 50e6)
        assert (found.ends, found.replicas) == ((3, 4), (3, 1))
        assert found.clock_s < found.alone_s / 3
    assert found.sentence.startswith("planned 3-1: ")


def test_without_a_flush_only_the_last_stage_waits_for_its_exchange() -> None:
    exchange_s = 4 / 3 * 3 * 100 * MB / 50e6  # of three machines and 300 MB of weights
    heavy = [0.6, 0.6, 0.6, 0.1], [MB // 8] * 4, [100 * MB] * 3 + [400 * MB]
    flush, stash = (
        planned_stages(rules(*heavy, mode=mode), 4, 16, 50e6)
        for mode in (PipelineMode.FLUSH, PipelineMode.STASH)
    )
    assert (stash.ends, stash.replicas) == ((3, 4), (3, 1))
    assert stash.clock_s == pytest.approx(6 * 1.8, rel=0.01), "six of sixteen units"
    assert exchange_s < stash.clock_s < flush.clock_s - exchange_s / 2


def test_light_weights_are_data_parallel_and_one_machine_is_one_stage() -> None:
    light = [0.1] * 4, [4 * MB] * 4, [1024] * 4
    assert planned_stages(rules(*light), 4, 16, 50e6).replicas == (4,)
    assert planned_stages(rules(*FRONT_HEAVY), 1, 16, 50e6).replicas == (1,)


def test_no_more_stages_and_replicas_than_allowed() -> None:
    assert len(planned_stages(rules(*FRONT_HEAVY, most=1), 4, 16, 50e6).ends) == 1
    light = [0.1] * 4, [4 * MB] * 4, [1024] * 4
    assert max(planned_stages(rules(*light), 4, 2, 50e6).replicas) <= 2


def test_a_rate_that_nobody_knows_is_assumed_and_one_that_limits_nothing_is_large() -> None:
    wanted = rules(*FRONT_HEAVY)
    assert planned_stages(wanted, 4, 16, None) == planned_stages(wanted, 4, 16, ASSUMED_BYTES_PER_S)
    assert planned_stages(wanted, 4, 16, math.inf).clock_s < planned_stages(wanted, 4, 16, None).clock_s


@settings(deadline=None, max_examples=examples(40))
@given(data=st.data())
def test_a_plan_holds_all_partitions_and_is_no_slower_than_data_parallelism(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    each = st.lists(st.integers(1, 50 * MB), min_size=count, max_size=count)
    seconds = data.draw(st.lists(st.floats(0.001, 1.0), min_size=count, max_size=count))
    mode = data.draw(st.sampled_from([PipelineMode.FLUSH, PipelineMode.STASH]))
    wanted = rules(seconds, data.draw(each), data.draw(each), mode=mode)
    machines = data.draw(st.integers(1, 6))
    found = planned_stages(wanted, machines, 8, data.draw(st.sampled_from([1e6, 1e8, 1e10])))
    assert found.ends[-1] == count and all(a < b for a, b in pairwise((0, *found.ends)))
    assert len(found.replicas) == len(found.ends) and sum(found.replicas) <= machines
    assert found.clock_s <= found.alone_s * (1 + 1e-9)


def test_the_reason_of_a_change_says_what_was_planned() -> None:
    machines = Machines(("r",), ("a", "b", "c", "d"), bytes_per_s=50e6)
    found = place_stages(machines, rules(*FRONT_HEAVY), 16, (), [""] * 4, [""] * 4, [""] * 8, [""] * 8)
    assert [len(stage.replicas) for stage in found.pipeline] == [3, 1]
    assert "3-3 at d (planned 3-1: " in found.reason
    assert cut_stages(rules(*FRONT_HEAVY), 4, 16, 50e6).ranges == [(0, 3), (3, 4)]
