"""iBatch: the exact optimum of the makespan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import ibatch_baselines as baselines
from pipeline.ibatch.batches import BatchingError, batches, iteration_seconds, makespan_seconds, push_batches
from tests.thorough import examples


def by_enumeration(startup: float, transfer: np.ndarray, forward: np.ndarray) -> float:
    """Every set of ends at once: a bit per layer but the last says whether a batch ends there."""
    layers = len(transfer)
    masks = np.arange(1 << (layers - 1))
    pull_end = np.zeros(len(masks))
    forward_end = np.zeros(len(masks))
    pending_pull = np.full(len(masks), startup)
    pending_forward = np.zeros(len(masks))
    for layer in range(layers):
        pending_pull += transfer[layer]
        pending_forward += forward[layer]
        ends = (masks >> layer & 1).astype(bool) if layer < layers - 1 else np.ones(len(masks), bool)
        pull_end[ends] += pending_pull[ends]
        forward_end[ends] = np.maximum(pull_end[ends], forward_end[ends]) + pending_forward[ends]
        pending_pull[ends], pending_forward[ends] = startup, 0.0
    return float(forward_end.min())


def by_dynamic_program(startup: float, transfer: np.ndarray, forward: np.ndarray) -> float:
    """D[k][l] = min over l' of max(D[k-1][l'], k T_s + pulled[l] + left[l'])."""
    layers = len(transfer)
    pulled = np.concatenate([[0.0], np.cumsum(transfer)])
    left = np.concatenate([np.cumsum(forward[::-1])[::-1], [0.0]])
    best = np.inf
    before = np.full(layers + 1, np.inf)
    before[0] = 0.0
    for k in range(1, layers + 1):
        now = np.full(layers + 1, np.inf)
        for end in range(k, layers + 1):
            now[end] = np.maximum(before[:end], k * startup + pulled[end] + left[:end]).min()
        best = min(best, now[layers])
        before = now
    return float(best)


def random_times(rng: np.random.Generator, layers: int):
    """Whole numbers, so that both sides add up exactly; from pull-bound to compute-bound."""
    scale = rng.choice([1, 5, 30])
    transfer = rng.integers(0, 12, layers).astype(float)
    forward = (rng.integers(0, 12, layers) * scale).astype(float)
    return float(rng.integers(0, 9)), transfer, forward


@pytest.mark.parametrize("cases", [800, pytest.param(2_000, marks=pytest.mark.slow)])
def test_equals_enumeration_and_dynamic_program(cases: int) -> None:
    rng = np.random.default_rng(3)
    for case in range(cases):
        layers = int(rng.integers(1, 15 if case % 20 == 0 else 11))
        startup, transfer, forward = random_times(rng, layers)
        found = batches(startup, transfer, forward)
        assert found.makespan_s == by_enumeration(startup, transfer, forward), case
        assert found.makespan_s == makespan_seconds(startup, transfer, forward, found.ends)
        if case % 10 == 0:
            assert found.makespan_s == by_dynamic_program(startup, transfer, forward)


@given(
    st.integers(1, 60).flatmap(
        lambda n: st.tuples(
            st.floats(0, 10),
            st.lists(st.floats(0, 100), min_size=n, max_size=n),
            st.lists(st.floats(0, 100), min_size=n, max_size=n),
        )
    )
)
@settings(deadline=None, derandomize=True, max_examples=examples(150))
def test_never_worse_than_anything_else_on_any_floats(times) -> None:
    startup, transfer, forward = times[0], np.array(times[1]), np.array(times[2])
    found = batches(startup, transfer, forward)
    assert found.makespan_s <= baselines.default(startup, transfer, forward).makespan_s
    assert found.makespan_s <= baselines.layer_by_layer(startup, transfer, forward).makespan_s
    paper = baselines.paper(startup, transfer, forward)
    assert paper is None or found.makespan_s <= paper.makespan_s
    assert found.makespan_s == pytest.approx(by_dynamic_program(startup, transfer, forward), rel=1e-12)


def test_constraint_5_can_forbid_the_best() -> None:
    transfer, forward = np.array([1.0, 1.0]), np.array([10.0, 10.0])
    assert batches(1, transfer, forward).makespan_s == 22
    # Two batches violate constraint 5 here, and the greedy pair never tries one batch: no result.
    assert baselines.paper(1, transfer, forward) is None
    assert baselines.default(1, transfer, forward).makespan_s == 23


def test_equation_4_is_the_makespan_where_constraint_5_holds() -> None:
    transfer, forward = np.array([4.0, 9.0, 9.0]), np.array([3.0, 4.0, 2.0])
    ends = baselines.greedy_from_front(1.0, transfer, forward)
    assert ends is not None
    assert baselines.equation_4(1.0, transfer, forward, ends) == makespan_seconds(
        1.0, transfer, forward, ends
    )


def push_by_simulation(startup, transfer, backward, ends) -> float:
    now = free = 0.0
    for start, end in reversed(list(zip([0, *ends[:-1]], ends, strict=True))):
        now += backward[start:end].sum()
        free = max(now, free) + startup + transfer[start:end].sum()
    return free


def test_pushes_mirror_pulls() -> None:
    rng = np.random.default_rng(4)
    for _ in range(200):
        startup, transfer, backward = random_times(rng, 7)
        found = push_batches(startup, transfer, backward)
        assert found.makespan_s == push_by_simulation(startup, transfer, backward, found.ends)
        cuts = [[i + 1 for i in range(7) if i == 6 or mask >> i & 1] for mask in range(64)]
        assert found.makespan_s == min(push_by_simulation(startup, transfer, backward, ends) for ends in cuts)


def test_iterations_on_one_link_or_two() -> None:
    transfer, forward = np.array([2.0, 2.0, 2.0]), np.array([1.0, 1.0, 1.0])
    pull = batches(0.5, transfer, forward)
    push = push_batches(0.5, transfer, forward)
    # Waiting for the last push, an iteration is the two makespans.
    sync = iteration_seconds(0.5, transfer, forward, forward, pull.ends, push.ends)
    assert sync == pytest.approx(pull.makespan_s + push.makespan_s)
    one = iteration_seconds(
        0.5, transfer, forward, forward, pull.ends, push.ends, one_link=True, asynchronous=True
    )
    two = iteration_seconds(0.5, transfer, forward, forward, pull.ends, push.ends, asynchronous=True)
    assert two < one <= sync + 1e-9


@pytest.mark.parametrize(
    "times",
    [(-1, [1], [1]), (1, [1, 2], [1]), (1, [], []), (1, [float("nan")], [1]), (1, [float("inf")], [1])],
)
def test_bad_times_are_one_sentence(times) -> None:
    with pytest.raises(BatchingError):
        batches(*times)


def test_ends_may_be_an_array() -> None:
    assert makespan_seconds(1.0, [1.0, 1.0], [10.0, 10.0], np.array([1, 2])) == 22
