"""The simulation of plans and schedules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.partition.memory import MemoryRules, stage_bytes
from pipeline.partition.planner import partition
from pipeline.profile.layers import chain
from pipeline.schedule.actions import Action, Kind
from pipeline.schedule.policies import (
    flush,
    full_rate_in_flight,
    gpipe,
    long_enough,
    model_parallel,
    noam,
    one_f_one_b,
    whole_turn,
)
from pipeline.schedule.rules import update_members
from pipeline.schedule.timing import Contention, Exchange, Network, StageCost, simulate, simulate_plan
from pipeline.schedule.versions import Versions, trace
from pipeline.topology.levels import Topology
from tests.thorough import examples


def balanced(replicas: list[int]) -> list[StageCost]:
    return [StageCost(float(r), 2.0 * r) for r in replicas]


@pytest.mark.parametrize("seconds", [(1.0, 2.0), (3.0, 3.0), (2.0, 3.0)])
def test_a_balanced_straight_pipeline_runs_at_its_slowest_stage_exactly(seconds) -> None:
    timeline = simulate(one_f_one_b([1] * 4, 64), [StageCost(*seconds)] * 4)
    assert timeline.seconds_per_minibatch() == sum(seconds)


@pytest.mark.parametrize("minibatches", range(1, 13))
def test_a_short_run_is_no_faster_than_its_stages(minibatches: int) -> None:
    timeline = simulate(one_f_one_b([1] * 2, minibatches), balanced([1] * 2))
    assert 3.0 <= timeline.seconds_per_minibatch() <= timeline.makespan_s


def test_figures_5_2_to_5_4_in_time() -> None:
    straight = balanced([1] * 4)
    # Model parallelism: one minibatch passes all stages there and back.
    assert simulate(model_parallel([1] * 4, 3), straight).makespan_s == 3 * 4 * 3
    # GPipe: (m + n - 1) slots of forward and of backward per group.
    assert simulate(gpipe([1] * 4, 8, 4), straight).makespan_s == 2 * (4 + 4 - 1) * 3
    # 1F1B: start-up n - 1 forwards, then one minibatch per 3, then n - 1 backwards.
    assert simulate(one_f_one_b([1] * 4, 8), straight).makespan_s == 3 + 8 * 3 + 3 * 2


def test_inner_replicated_stages_need_more_than_noam() -> None:
    replicas = [1, 4, 1]
    at_noam = simulate(one_f_one_b(replicas, 400), balanced(replicas))
    assert noam(replicas) == 6
    assert 3 / at_noam.seconds_per_minibatch() == pytest.approx(0.8, abs=0.01)
    assert full_rate_in_flight(replicas) == 9
    more = simulate(one_f_one_b(replicas, 400, in_flight=9), balanced(replicas))
    assert 3 / more.seconds_per_minibatch() >= 0.95


@pytest.mark.parametrize(
    ("replicas", "in_flight"), [([2, 2], 24), ([1, 1], 20), ([3, 4, 5], 5), ([1, 4, 1], 9)]
)
def test_a_run_that_is_long_enough_has_no_start_up_in_its_pace(replicas: list[int], in_flight: int) -> None:
    schedule = one_f_one_b(replicas, long_enough(replicas, in_flight), in_flight=in_flight)
    pace = simulate(schedule, balanced(replicas)).long_run_seconds()
    longer = one_f_one_b(replicas, 2 * schedule.minibatches, in_flight=in_flight)
    assert pace is not None
    assert pace == pytest.approx(simulate(longer, balanced(replicas)).seconds_per_minibatch(), rel=0.01)


@given(
    forward=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    minibatches=st.integers(1, 20),
)
@settings(deadline=None, derandomize=True, max_examples=examples(60))
def test_time_is_bounded_by_work_and_by_one_at_a_time(forward: list[int], minibatches: int) -> None:
    costs = [StageCost(float(f), 2.0 * f) for f in forward]
    timeline = simulate(one_f_one_b([1] * len(forward), minibatches), costs)
    assert timeline.makespan_s >= minibatches * 3 * max(forward)
    assert timeline.makespan_s <= minibatches * 3 * sum(forward)
    assert 0 <= timeline.bubble() < 1
    per_worker: dict[int, float] = {}
    for span in timeline.spans:
        assert span.start_s >= per_worker.get(span.worker, 0.0)
        per_worker[span.worker] = span.end_s


def test_a_slow_link_decides_and_latency_is_hidden_or_not() -> None:
    topology = Topology(((2, 10.0),))
    costs = [StageCost(1.0, 2.0, output_bytes=25.0, devices=(0,)), StageCost(1.0, 2.0, devices=(1,))]
    schedule = one_f_one_b([1, 1], 60, in_flight=6)
    half = simulate(schedule, costs, Network(topology))
    # 2.5 s there and 2.5 s back on one link: 2 a / B, the partitioner's number.
    assert half.seconds_per_minibatch() == pytest.approx(5.0, rel=0.03)
    full = simulate(schedule, costs, Network(topology, full_duplex=True))
    assert full.seconds_per_minibatch() == pytest.approx(3.0)
    waits = simulate(schedule, costs, Network(topology, full_duplex=True, overlap=False))
    assert waits.seconds_per_minibatch() >= 5.5
    late = simulate(schedule, costs, Network(topology, latency_s=1.0, full_duplex=True))
    assert late.makespan_s > full.makespan_s


def test_a_shared_port_is_slower_than_a_link_per_pair() -> None:
    topology = Topology(((3, 10.0),))
    costs = [
        StageCost(1.0, 2.0, output_bytes=10.0, devices=(0,)),
        StageCost(1.0, 2.0, output_bytes=10.0, devices=(1,)),
        StageCost(1.0, 2.0, devices=(2,)),
    ]
    schedule = one_f_one_b([1, 1, 1], 40, in_flight=6)
    pace = {
        kind: simulate(schedule, costs, Network(topology, contention=kind)).seconds_per_minibatch()
        for kind in Contention
    }
    assert pace[Contention.NONE] == pytest.approx(3.0)
    assert pace[Contention.PAIR] == pytest.approx(3.0)
    # The middle device's port carries both cuts, there and back: 4 a / B.
    assert pace[Contention.PORT] == pytest.approx(4.0)


def test_the_exchange_of_gradients_limits_the_rate_as_predicted() -> None:
    topology = Topology(((2, 10.0),))
    costs = [StageCost(1.0, 2.0, parameter_bytes=60.0, devices=(0, 1))]
    schedule = one_f_one_b([2], 80, in_flight=2)
    # 2 (m-1) w / B = 12 s per round of two; computing takes 3.
    background = simulate(schedule, costs, Network(topology))
    assert background.seconds_per_minibatch() == pytest.approx(6.0)
    barrier = simulate(schedule, costs, Network(topology, exchange=Exchange.BARRIER))
    assert barrier.seconds_per_minibatch() == pytest.approx(7.5)
    # With one minibatch in flight the next forward needs the round's weights.
    alone = simulate(one_f_one_b([2], 80), costs, Network(topology))
    assert alone.seconds_per_minibatch() == pytest.approx(7.5)
    groups = simulate(gpipe([2], 80, 8), costs, Network(topology))
    assert groups.seconds_per_minibatch() == pytest.approx((4 * 3 + 12) / 8, rel=0.06)


@given(
    replicas=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    minibatches=st.integers(1, 16),
    in_flight=st.none() | st.integers(1, 6),
    parameter_bytes=st.floats(0.0, 200.0),
    grouped=st.booleans(),
)
@settings(deadline=None, derandomize=True, max_examples=examples(60))
def test_no_forward_starts_before_its_weights_are_exchanged(
    replicas: list[int], minibatches: int, in_flight: int | None, parameter_bytes: float, grouped: bool
) -> None:
    devices = range(sum(replicas))
    costs, first = [], 0
    for r in replicas:
        costs.append(
            StageCost(
                r, 2 * r, 5.0, parameter_bytes, devices=tuple(devices[first : first + r]), weights_s=float(r)
            )
        )
        first += r
    if grouped:
        schedule = flush(replicas, minibatches, 5, in_flight=in_flight, zero_bubble=minibatches % 2 == 0)
    else:
        schedule = one_f_one_b(replicas, minibatches, in_flight=in_flight, drains=[(minibatches + 1) // 2])
    timeline = simulate(schedule, costs, Network(Topology(((max(2, len(devices)), 10.0),))))
    done = {(schedule.stage_of(s.worker), s.action): s.end_s for s in timeline.spans}
    uses = trace(schedule, Versions.STASHING).uses
    place = dict.fromkeys(range(len(schedule.workers)), 0)
    exchanges = {(stage, end) for stage, _, end in timeline.exchanges}
    for span in timeline.spans:
        version, stage = uses[span.worker][place[span.worker]], schedule.stage_of(span.worker)
        place[span.worker] += 1
        if version and span.action.kind is Kind.FORWARD:
            members = update_members(schedule, stage, version)
            last = max(done[stage, Action(schedule.kinds(stage)[-1], b)] for b in members)
            if schedule.replicas[stage] > 1:
                last = min(end for s, end in exchanges if s == stage and end >= last)
            assert span.start_s >= last, f"{span}\n{schedule}"


def test_zero_bubble_fills_the_wait_for_the_first_gradient() -> None:
    costs = [StageCost(1.0, 2.0, weights_s=1.0)] * 2
    for group in (4, 8, 16):
        plain = simulate(flush([1, 1], group, group), costs).makespan_s
        assert plain == 3 * group + 3
        assert simulate(flush([1, 1], group, group, zero_bubble=True), costs).makespan_s == 3 * group + 1
    four = [StageCost(1.0, 2.0, weights_s=1.0)] * 4
    assert simulate(flush([1] * 4, 8, 8), four).makespan_s == 3 * (8 + 3)
    # ZB-H1: the bubble shrinks from (n - 1)(F + B) to (n - 1)(F + B - 2 W), B and W one each.
    assert simulate(flush([1] * 4, 8, 8, zero_bubble=True), four).makespan_s <= 3 * 8 + 2 * 3


def test_the_partitioners_prediction_is_met_in_the_long_run() -> None:
    profile = chain([3.0, 6.0, 3.0, 6.0, 3.0, 3.0], [4.0] * 6, [1.0] * 6)
    topology = Topology(((4, 10.0),))
    plan = partition(profile, topology, straight=True)
    schedule = one_f_one_b(
        [stage.replicas for stage in plan.stages],
        200,
        forward_s=[stage.forward_s for stage in plan.stages],
        backward_s=[stage.backward_s for stage in plan.stages],
    )
    timeline = simulate_plan(plan, schedule)
    assert timeline.seconds_per_minibatch() == pytest.approx(plan.seconds_per_minibatch, rel=0.05)


def test_the_pace_of_stages_that_seldom_stand_as_before_needs_no_whole_turn() -> None:
    assert whole_turn([4, 6, 10]) == 60
    assert whole_turn([24, 46, 7, 19]) == 2024  # not 73416
    replicas = [7, 13, 11, 5]  # 5005 minibatches
    count = 4 * noam(replicas) * replicas[0] + 2 * whole_turn(replicas)
    made = one_f_one_b(replicas, count, in_flight=full_rate_in_flight(replicas))
    costs = [StageCost(1.0 * r, 2.0 * r) for r in replicas]
    costs[1] = StageCost(13.5, 27.0)
    assert simulate(made, costs).seconds_per_minibatch() == pytest.approx(40.5 / 13, rel=5e-3)


def test_memory_rises_to_the_minibatches_in_flight() -> None:
    costs = [StageCost(1.0, 2.0, parameter_bytes=10.0, activation_bytes=3.0)] * 4
    timeline = simulate(one_f_one_b([1] * 4, 20), costs)
    for stage in range(4):
        peak = max(size for _, size in timeline.memory(stage, optimizer_factor=1.0))
        assert peak == 2 * 10 + (4 - stage) * 13


@pytest.mark.parametrize("make", [flush, gpipe])
def test_memory_with_a_flush_has_one_version_of_the_weights(make) -> None:
    """As the planner counts it: a version for each microbatch in flight made GPipe's memory several times too large."""
    made = make([1] * 4, 16, 8)
    timeline = simulate(made, [StageCost(1.0, 2.0, parameter_bytes=10.0, activation_bytes=3.0)] * 4)
    for stage, in_flight in enumerate(made.in_flight):
        held = MemoryRules(group=8).held(in_flight)
        assert max(size for _, size in timeline.memory(stage)) == stage_bytes(held, 10.0, 3.0, 1.0)


def test_recomputed_activations_are_there_only_while_a_backward_runs() -> None:
    cost = StageCost(1.0, 2.0, activation_bytes=1.0, transient_bytes=50.0)
    steps = simulate(one_f_one_b([1], 2), [cost]).memory(0)
    assert [size for _, size in steps] == [0, 1, 51, 0, 1, 51, 0]


def test_stages_that_take_no_time_are_never_idle() -> None:
    assert simulate(one_f_one_b([1, 1], 4), [StageCost(0.0, 0.0)] * 2).bubble() == 0
