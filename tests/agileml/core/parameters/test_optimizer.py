"""Optimizers and schedules: against plain numpy, against torch, and the same bits however a table is cut."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.config.job import from_values
from agileml.core.parameters.learning_rate import SCHEDULES, schedule
from agileml.core.parameters.optimizer import KINDS as ALL_KINDS
from agileml.core.parameters.optimizer import Optimizer, optimizer, take_step
from tests.thorough import examples

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


@settings(deadline=None, derandomize=True, max_examples=examples(60))
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


# (kind, settings, the same in torch.optim): everything that is not plain, alone and together.
VARIANTS: dict[str, tuple[str, dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd with decay": (
        "sgd",
        {"learning_rate": 0.1, "weight_decay": 0.05},
        lambda w: torch.optim.SGD([w], lr=0.1, weight_decay=0.05),
    ),
    "momentum with decay": (
        "momentum",
        {"learning_rate": 0.1, "momentum": 0.8, "weight_decay": 0.05},
        lambda w: torch.optim.SGD([w], lr=0.1, momentum=0.8, weight_decay=0.05),
    ),
    "nesterov": (
        "momentum",
        {"learning_rate": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.05},
        lambda w: torch.optim.SGD([w], lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.05),
    ),
    "adagrad": ("adagrad", {"learning_rate": 0.1}, lambda w: torch.optim.Adagrad([w], lr=0.1)),
    "adagrad with decay": (
        "adagrad",
        {"learning_rate": 0.1, "weight_decay": 0.05, "epsilon": 0.1},
        lambda w: torch.optim.Adagrad([w], lr=0.1, weight_decay=0.05, eps=0.1),
    ),
    "adam with decay": (
        "adam",
        {"learning_rate": 0.05, "weight_decay": 0.05},
        lambda w: torch.optim.Adam([w], lr=0.05, weight_decay=0.05),
    ),
    "adamw": ("adamw", {"learning_rate": 0.05}, lambda w: torch.optim.AdamW([w], lr=0.05)),
    "adamw with more decay": (
        "adamw",
        {"learning_rate": 0.05, "weight_decay": 0.3, "beta1": 0.5},
        lambda w: torch.optim.AdamW([w], lr=0.05, weight_decay=0.3, betas=(0.5, 0.999)),
    ),
}


@pytest.mark.parametrize("clip", [None, 0.4])
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_are_torchs(name: str, scheduled: bool, clip: float | None) -> None:
    kind, settings, in_torch = VARIANTS[name]
    clocks = 25
    rng = np.random.default_rng(7)
    start = rng.normal(size=19)
    gradients = [rng.normal(size=19) for _ in range(clocks)]
    cosine = {"kind": "cosine", "clocks": clocks, "final": 0.2} if scheduled else None
    found = train(optimizer(kind, **settings, clip=clip, schedule=cosine), start, gradients, in_place=False)

    w = torch.tensor(start.copy(), requires_grad=True)
    algorithm = in_torch(w)
    first = algorithm.param_groups[0]["lr"]
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(algorithm, T_max=clocks, eta_min=0.2 * first)
    for gradient in gradients:
        w.grad = torch.tensor(gradient)
        if clip is not None:
            torch.nn.utils.clip_grad_value_([w], clip)
        algorithm.step()
        if scheduled:
            rates.step()
    np.testing.assert_allclose(found, w.detach().numpy(), rtol=1e-10, atol=1e-12)


def test_steps_and_linear_are_torchs() -> None:
    for ours, theirs in (
        (
            schedule({"kind": "steps", "every": 4, "by": 0.5}),
            lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=4, gamma=0.5),
        ),
        (
            schedule({"kind": "linear", "clocks": 10, "final": 0.1}),
            lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.1, total_iters=10),
        ),
    ):
        algorithm = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        rates = theirs(algorithm)
        for clock in range(15):
            assert ours is not None
            assert math.isclose(ours.factor(clock), algorithm.param_groups[0]["lr"], rel_tol=1e-9)
            algorithm.step()
            rates.step()


@settings(deadline=None, derandomize=True, max_examples=examples(100))
@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.integers(1, 50),
    st.integers(0, 20),
    st.floats(0.01, 1),
    st.integers(0, 200),
)
def test_a_factor_is_within_0_and_1_and_warms_up(
    kind: str, length: int, warmup: int, by: float, clock: int
) -> None:
    shape = {"every": length, "by": by} if kind == "steps" else {"clocks": length, "final": by}
    found = SCHEDULES[kind](**shape, warmup=warmup)
    assert 0 <= found.factor(clock) <= 1
    if warmup:
        assert found.factor(0) <= 1 / warmup
    if kind != "steps" and clock >= max(length, warmup + 1):
        assert math.isclose(found.factor(clock), by)


def test_clipping_leaves_what_is_not_a_number() -> None:
    gradient = np.array([np.nan, 5.0, -5.0, 0.5], np.float32)
    start = np.zeros(4, np.float32)
    found = train(optimizer("sgd", learning_rate=1.0, clip=1.0), start, [gradient], in_place=False)
    np.testing.assert_array_equal(found, np.array([np.nan, -1.0, 1.0, -0.5], np.float32))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_config_builds_each(kind: str) -> None:
    section = {"kind": kind, "clip": 2.0, "schedule": {"kind": "steps", "every": 3}}
    config = from_values({"application": "mlr", "clocks": 1, "optimizer": section})
    built = optimizer(**config.optimizer.model_dump(exclude={"groups"}))
    assert type(built) is ALL_KINDS[kind]
    assert built == optimizer(
        kind, clip=2.0, schedule={"kind": "steps", "every": 3}, learning_rate=built.learning_rate
    )  # type: ignore[attr-defined]


def test_names_and_settings() -> None:
    assert math.isclose(optimizer("adam").learning_rate, 0.001)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="none of sgd, momentum, adagrad, adam, adamw"):
        optimizer("lion", learning_rate=1.0)
    with pytest.raises(ValueError, match="none of steps, cosine, linear"):
        optimizer("sgd", learning_rate=1.0, schedule={"kind": "poly"})
