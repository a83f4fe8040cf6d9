"""Steps on arrival: one contribution is one step along its own mean, for its share of a clock."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import Table
from agileml.core.parameters.apply import apply_total
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Sparse
from agileml.core.parameters.optimizer import KINDS, Optimizer, optimizer, take_step
from agileml.core.parameters.step_terms import PLAIN, own_mean
from tests.thorough import examples

UNITS = 16
SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.1},
    "momentum": {"learning_rate": 0.1, "momentum": 0.8},
    "nesterov": {"learning_rate": 0.1, "momentum": 0.8, "nesterov": True},
    "adagrad": {"learning_rate": 0.1},
    "adam": {"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.99},
    "adamw": {"learning_rate": 0.1, "weight_decay": 0.3},
}


def build(name: str, **more: Any) -> Optimizer:
    return optimizer("momentum" if name == "nesterov" else name, **SETTINGS[name] | more)


def trained(rule: Optimizer, start: np.ndarray, clocks: list[list[tuple[int, np.ndarray]]]) -> np.ndarray:
    """`start` after clocks that came in contributions of (units, sum of their updates)."""
    values, state, counted = start, [np.zeros_like(start) for _ in range(rule.slots)], 0
    for clock, contributions in enumerate(clocks):
        for units, total in contributions:
            counted += units
            terms = own_mean(units, UNITS, counted)
            values, state = take_step(rule, clock, values, total, state, in_place=False, terms=terms)
    return values


def twin(
    name: str, start: np.ndarray, clocks: list[list[tuple[int, np.ndarray]]], decay: float
) -> np.ndarray:
    """The formulas of the docstrings, element by element in Python's floats."""
    s, found = SETTINGS[name], []
    for i, value in enumerate(start):
        p, m, v, counted = float(value), 0.0, 0.0, 0
        for contributions in clocks:
            for units, total in contributions:
                counted += units
                w, steps = units / UNITS, counted / units
                g = float(total[i]) / w
                rate = w * s["learning_rate"]
                if name == "adamw":
                    p *= 1 - rate * decay
                else:
                    g += decay * p
                if name == "sgd":
                    p -= rate * g
                elif name in ("momentum", "nesterov"):
                    mu = s["momentum"]
                    m = mu * m + g
                    p -= rate * (g + mu * m if name == "nesterov" else m)
                elif name == "adagrad":
                    v += w * g * g
                    p -= rate * g / (math.sqrt(v) + 1e-10)
                else:
                    b1, b2 = s.get("beta1", 0.9), s.get("beta2", 0.999)
                    m = b1 * m + (1 - b1) * g
                    v = b2 * v + (1 - b2) * g * g
                    p -= rate * m / (1 - b1**steps) / (math.sqrt(v / (1 - b2**steps)) + 1e-8)
        found.append(p)
    return np.array(found)


# Clocks of 16 units, each cut into contributions.
CUTS = st.lists(
    st.lists(st.integers(1, UNITS - 1), max_size=4, unique=True).map(sorted), min_size=1, max_size=4
)


@settings(deadline=None, max_examples=examples(50))
@given(st.sampled_from(sorted(SETTINGS)), CUTS, st.sampled_from([0.0, 0.05]), st.integers(0, 1000))
def test_any_clocks_in_any_parts_are_what_the_formulas_say(
    name: str, cuts: list[list[int]], decay: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    start = rng.normal(size=3)
    clocks = []
    for inner in cuts:
        edges = [0, *inner, UNITS]
        sizes = [stop - first for first, stop in pairwise(edges)]
        clocks.append([(units, rng.normal(size=3) * units / UNITS) for units in sizes])
    wanted = twin(name, start, clocks, decay)
    np.testing.assert_allclose(trained(build(name, weight_decay=decay), start, clocks), wanted, rtol=1e-9)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_contribution_of_the_whole_clock_is_the_step_of_that_clock_to_the_bit(name: str) -> None:
    rng = np.random.default_rng(1)
    start, rule = rng.normal(size=9).astype(np.float32), build(name, weight_decay=0.02)
    gradients = [rng.normal(size=9).astype(np.float32) for _ in range(5)]
    values, state = start, [np.zeros_like(start) for _ in range(rule.slots)]
    for clock, gradient in enumerate(gradients):
        values, state = take_step(rule, clock, values, gradient, state, in_place=False)
    assert trained(rule, start, [[(UNITS, g)] for g in gradients]).tobytes() == values.tobytes()


@pytest.mark.parametrize("parts", [2, 4, 16])
@pytest.mark.parametrize("name", SETTINGS)
def test_clocks_in_parts_move_as_far_as_clocks_in_one(name: str, parts: int) -> None:
    """With a gradient that does not change: SGD and Adam exactly; averages that begin at 0 get there sooner."""
    start, gradient = np.zeros(2), np.array([0.3, -2.0])
    rule, clocks = build(name, weight_decay=0.0), 20
    whole = trained(rule, start, [[(UNITS, gradient)]] * clocks)
    cut = trained(rule, start, [[(UNITS // parts, gradient / parts)] * parts] * clocks)
    within = 1e-6 if name in ("sgd", "adam", "adamw") else 0.25
    np.testing.assert_allclose(cut, whole, rtol=within)


def test_adam_along_the_sums_of_parts_moved_several_times_as_far() -> None:
    """What a step of the clock for every part was: the reason for steps along means, for their shares."""
    values, state = np.zeros(1), [np.zeros(1), np.zeros(1)]
    rule = build("adam")
    for clock in range(3):
        for _ in range(4):
            values, state = take_step(rule, clock, values, np.array([0.25]), state, in_place=False)
    assert abs(values[0]) > 4 * 0.3
    own = trained(rule, np.zeros(1), [[(UNITS // 4, np.array([0.25]))] * 4] * 3)
    np.testing.assert_allclose(own, [-0.3], rtol=1e-6)


def test_rows_of_a_sparse_table_take_a_whole_step_along_what_came_for_them() -> None:
    table = Table("rows", 4, 2, "float64", sparse=True)
    update = Sparse(np.array([1, 3], np.int32), np.array([[0.5, -1.0], [2.0, 0.25]]))
    found = []
    for terms in (PLAIN, own_mean(4, UNITS, 12)):
        block = np.ones((4, 2))
        state = [[np.zeros((4, 2)), np.zeros((4, 2))]]
        total = Contribution((update,))
        applied = apply_total(total, [table], [block], state, 2, build("adam"), in_place=False, terms=terms)
        found.append(applied.blocks[0].tobytes())
    assert found[0] == found[1]


def test_a_schedule_goes_by_the_clock_of_a_contribution() -> None:
    rule = build("sgd", schedule={"kind": "steps", "every": 1, "by": 0.5})
    clocks = [[(8, np.array([1.0])), (8, np.array([1.0]))], [(8, np.array([1.0])), (8, np.array([1.0]))]]
    np.testing.assert_allclose(trained(rule, np.zeros(1), clocks), [-0.1 * 2 - 0.05 * 2])


def test_elements_are_limited_in_the_mean_and_not_in_the_sum() -> None:
    """A limit that no clock's mean reaches changes nothing, in however many parts a clock comes."""
    parts = [(UNITS // 4, np.array([0.1, 0.5]))] * 4  # mean (0.4, 2)
    np.testing.assert_allclose(trained(build("sgd", clip=1.0), np.zeros(2), [parts]), [-0.04, -0.1])


def test_every_kind_but_lamb_is_tried_here() -> None:
    assert set(SETTINGS) - {"nesterov"} == set(KINDS) - {"lamb"}
