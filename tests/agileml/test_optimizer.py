"""SGD, momentum and Adam: against plain numpy, against torch, and the same bits however a table is cut."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.optimizer import Optimizer, optimizer, take_step

KINDS = {
    "sgd": {"learning_rate": 0.1},
    "momentum": {"learning_rate": 0.1, "momentum": 0.8},
    "adam": {"learning_rate": 0.05, "beta1": 0.8, "beta2": 0.99},
}


def train(algorithm: Optimizer, start: np.ndarray, gradients: list[np.ndarray], in_place: bool) -> np.ndarray:
    values, state = start.copy(), [np.zeros_like(start) for _ in range(algorithm.slots)]
    for clock, gradient in enumerate(gradients):
        before = values.copy()
        new, state = take_step(algorithm, clock, values, gradient, state, in_place=in_place)
        assert (new is values) == in_place
        if not in_place:
            assert np.array_equal(values, before)
        values = new
    return values


def twin(kind: str, start: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """The formulas, in float64."""
    w = start.astype(np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    s = KINDS[kind]
    for step, gradient in enumerate(gradients, start=1):
        g = gradient.astype(np.float64)
        if kind == "sgd":
            w = w - s["learning_rate"] * g
        elif kind == "momentum":
            m = s["momentum"] * m + g
            w = w - s["learning_rate"] * m
        else:
            m = s["beta1"] * m + (1 - s["beta1"]) * g
            v = s["beta2"] * v + (1 - s["beta2"]) * g * g
            m_hat, v_hat = m / (1 - s["beta1"] ** step), v / (1 - s["beta2"] ** step)
            w = w - s["learning_rate"] * m_hat / (np.sqrt(v_hat) + 1e-8)
    return w


def torch_twin(kind: str, start: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    s = KINDS[kind]
    w = torch.tensor(start.copy(), requires_grad=True)
    algorithm: torch.optim.Optimizer
    if kind == "adam":
        algorithm = torch.optim.Adam([w], lr=s["learning_rate"], betas=(s["beta1"], s["beta2"]))
    else:
        algorithm = torch.optim.SGD([w], lr=s["learning_rate"], momentum=s.get("momentum", 0.0))
    for gradient in gradients:
        w.grad = torch.tensor(gradient)
        algorithm.step()
    return w.detach().numpy()


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_the_formulas_and_torch_say(kind: str, dtype: str, in_place: bool) -> None:
    rng = np.random.default_rng(5)
    start = rng.normal(size=37).astype(dtype)
    gradients = [rng.normal(size=37).astype(dtype) for _ in range(30)]
    found = train(optimizer(kind, **KINDS[kind]), start, gradients, in_place)
    assert found.dtype == dtype
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(found, twin(kind, start, gradients), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found, torch_twin(kind, start, gradients), rtol=tolerance, atol=tolerance)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.sampled_from(sorted(KINDS)), st.integers(1, 200), st.lists(st.integers(0, 200), max_size=6))
def test_an_element_depends_on_itself_alone(kind: str, size: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(size)
    start = rng.normal(size=size).astype(np.float32)
    gradients = [rng.normal(size=size).astype(np.float32) for _ in range(3)]
    algorithm = optimizer(kind, **KINDS[kind])
    whole = train(algorithm, start, gradients, in_place=False)
    edges = sorted({0, size, *(c for c in cuts if c < size)})
    pieces = [
        train(algorithm, start[a:b], [g[a:b] for g in gradients], in_place=True) for a, b in pairwise(edges)
    ]
    assert np.concatenate(pieces).tobytes() == whole.tobytes()


def test_names_and_settings() -> None:
    assert math.isclose(optimizer("adam").learning_rate, 0.001)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="none of sgd, momentum, adam"):
        optimizer("lion", learning_rate=1.0)
