"""Versions of the weights: the thesis' formulas to the bit, across drains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.schedule.actions import Kind
from pipeline.schedule.policies import flush, gpipe, one_f_one_b
from pipeline.schedule.rules import newest
from pipeline.schedule.versions import Versions, VersionsError, trace
from tests.pipeline.schedule.numpy_trainer import history, loss_gradient, stage_backward, stage_forward, train

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
RATE = 0.3


def problem(stages: int, minibatches: int, seed: int = 0):
    """Small stages (two matrices each) and random minibatches."""
    rng = np.random.default_rng(seed)
    weights = [tuple(rng.normal(size=(5, 5)) / 2 for _ in range(2)) for _ in range(stages)]
    inputs = [rng.normal(size=(4, 5)) for _ in range(minibatches)]
    targets = [rng.normal(size=(4, 5)) / 2 for _ in range(minibatches)]
    return weights, inputs, targets


def gradient(weights, x, target):
    """nabla f at one set of weights, per stage, in one sequential pass."""
    kept = []
    for stage in weights:
        x, memory = stage_forward(stage, x)
        kept.append(memory)
    back = loss_gradient(x, target)
    found = []
    for stage, memory in zip(reversed(weights), reversed(kept), strict=True):
        back, own = stage_backward(stage, memory, back)
        found.append(own)
    return found[::-1]


def by_formula(delays, weights, inputs, targets, drains):
    """w^(t+1) = w^(t) - nu grad f(w_1^(t - delay_1), ..., w_n^(t - delay_n)), no older than the last drain."""
    past = [list(weights)]
    for t, (x, target) in enumerate(zip(inputs, targets, strict=True)):
        empty = max([0, *(end for end in drains if end <= t)])
        seen = [past[max(t - delay, empty)][stage] for stage, delay in enumerate(delays)]
        step = gradient(seen, x, target)
        now = [
            tuple(w - RATE * (g / 1) for w, g in zip(past[-1][stage], step[stage], strict=True))
            for stage in range(len(weights))
        ]
        past.append(now)
    return past


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for s, t in zip(a, b, strict=True) for x, y in zip(s, t, strict=True))


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("drains", [(9, 17, 25), (3, 4, 12)])
def test_stashing_and_vertical_sync_equal_the_formulas_to_the_bit(stages: int, drains) -> None:
    schedule = one_f_one_b([1] * stages, drains[-1], drains=drains[:-1])
    weights, inputs, targets = problem(stages, drains[-1])
    delays = {
        Versions.STASHING: [stages - 1 - stage for stage in range(stages)],
        Versions.VERTICAL_SYNC: [stages - 1] * stages,
    }
    for mode, delay in delays.items():
        ours = history(schedule, mode, weights, inputs, targets, RATE)
        formula = by_formula(delay, weights, inputs, targets, drains)
        for t in range(drains[-1] + 1):
            assert same(ours[t], formula[t]), f"{mode} differs after minibatch {t}"


@pytest.mark.parametrize("stages", [3, 4])
def test_without_stashing_the_weights_differ(stages: int) -> None:
    schedule = one_f_one_b([1] * stages, 12)
    weights, inputs, targets = problem(stages, 12)
    none = train(schedule, Versions.NONE, weights, inputs, targets, RATE)
    stashed = train(schedule, Versions.STASHING, weights, inputs, targets, RATE)
    assert not same(none, stashed)


def test_gpipe_equals_summed_gradients_of_each_group() -> None:
    weights, inputs, targets = problem(3, 10)
    ours = train(gpipe([1] * 3, 10, 4), Versions.STASHING, weights, inputs, targets, RATE)
    for zero_bubble in (False, True):
        for replicas in ([1] * 3, [2, 1, 3]):
            flushed = flush(replicas, 10, 4, zero_bubble=zero_bubble)
            assert same(ours, train(flushed, Versions.STASHING, weights, inputs, targets, RATE))
            assert max(trace(flushed, Versions.STASHING).peak) == 1
    now = list(weights)
    for low in range(0, 10, 4):
        steps = [
            gradient(now, x, t) for x, t in zip(inputs[low : low + 4], targets[low : low + 4], strict=True)
        ]
        for stage in range(3):
            total = steps[0][stage]
            for step in steps[1:]:
                total = tuple(a + b for a, b in zip(total, step[stage], strict=True))
            now[stage] = tuple(w - RATE * (g / 1) for w, g in zip(now[stage], total, strict=True))
    assert same(ours, now)


def test_one_replicated_stage_is_data_parallelism() -> None:
    weights, inputs, targets = problem(1, 9)
    ours = train(one_f_one_b([3], 9), Versions.STASHING, weights, inputs, targets, RATE)
    now = list(weights)
    for low in range(0, 9, 3):
        steps = [gradient(now, inputs[b], targets[b])[0] for b in range(low, low + 3)]
        total = tuple(a + b + c for a, b, c in zip(*steps, strict=True))
        now = [tuple(w - RATE * (g / 3) for w, g in zip(now[0], total, strict=True))]
    assert same(ours, now)


def test_a_replicated_stage_leaves_out_the_round_under_way() -> None:
    schedule = one_f_one_b([2, 1], 9)
    line = str(trace(schedule, Versions.STASHING)).splitlines()[1]
    # F5 stands behind B1, F7 behind B3: the round of 1 and 2 is added up while replica 1 computes.
    assert "B1@0 F5@0 B3@0 F7@2" in line
    assert schedule.rounds_behind(0) == 1
    assert one_f_one_b([3], 9).rounds_behind(0) == 0


def test_double_buffered_uses_two_versions_and_a_delay_of_one_group() -> None:
    schedule = one_f_one_b([1] * 3, 16, drains=[10])
    traced = trace(schedule, Versions.DOUBLE_BUFFERED, group=4)
    assert set(traced.peak) == {2}
    used = {
        a.minibatch: v
        for a, v in zip(schedule.workers[0], traced.uses[0], strict=True)
        if a.kind is Kind.FORWARD
    }
    assert [used[b] for b in range(1, 17)] == [0] * 8 + [4] * 2 + [10] * 6
    weights, inputs, targets = problem(3, 16)
    train(schedule, Versions.DOUBLE_BUFFERED, weights, inputs, targets, RATE, group=4)
    with pytest.raises(VersionsError, match="no smaller than the 3"):
        trace(schedule, Versions.DOUBLE_BUFFERED, group=2)


@pytest.mark.parametrize("replicas", [[2, 1], [1, 2], [3, 2, 1], [1, 3, 1]])
@pytest.mark.parametrize("mode", list(Versions))
def test_replicated_stages_run_with_every_mode_and_uneven_epochs(replicas, mode: Versions) -> None:
    schedule = one_f_one_b(replicas, 17, drains=[5, 12], barrier=True)
    weights, inputs, targets = problem(len(replicas), 17)
    result = train(schedule, mode, weights, inputs, targets, RATE)
    assert all(np.isfinite(w).all() for stage in result for w in stage)
    for uses, actions in zip(trace(schedule, mode).uses, schedule.workers, strict=True):
        if mode is not Versions.NONE:
            by = {}
            for version, action in zip(uses, actions, strict=True):
                assert by.setdefault(action.minibatch, version) == version


def test_figure_5_8() -> None:
    traced = trace(one_f_one_b([1] * 4, 8), Versions.STASHING)
    assert str(traced) == (GOLDEN / "pipeline_figure_5_8_versions.txt").read_text()
    lines = str(traced).splitlines()
    assert "F5@1" in lines[1]
    assert "F5@2" in lines[2]


def test_kept_versions_follow_the_stage() -> None:
    """Stage l of n keeps at most n - l + 1 versions (7.7), in steady state exactly."""
    schedule = one_f_one_b([1] * 5, 30)
    stashed = trace(schedule, Versions.STASHING)
    assert stashed.peak == (5, 4, 3, 2, 1)
    assert trace(schedule, Versions.NONE).peak == (1,) * 5


@pytest.mark.parametrize("mode", [Versions.STASHING, Versions.VERTICAL_SYNC, Versions.NONE])
@pytest.mark.parametrize("replicas", [(1, 1, 1, 1), (2, 1), (1, 3, 2)])
def test_the_most_versions_at_a_time_are_those_that_are_there_and_still_needed(replicas, mode):
    """By the definition, at every moment of every worker."""
    schedule = one_f_one_b(replicas, 23, in_flight=5, drains=(7, 8))
    traced = trace(schedule, mode)
    for worker, uses in enumerate(traced.uses):
        _, after = newest(schedule, worker)
        most, there = 1, 0
        for index in range(len(uses)):
            for begin, now in ((index, there), (index + 1, max(there, after[index]))):
                needed = {version for version in uses[begin:] if version <= now}
                most = max(most, len(needed | {now}))
            there = max(there, after[index])
        assert traced.peak[worker] == most


@pytest.mark.slow
def test_a_long_run_is_traced_in_one_pass():
    """With a look at all versions for each action this took half an hour."""
    traced = trace(one_f_one_b((1, 1), 100_000), Versions.STASHING)
    assert (traced.peak, len(traced.uses[0])) == ((2, 1), 200_000)
