"""Optimizers that run inside a shard: SGD, momentum, Adam.

Each is one fused pass over a block, in the block's own precision. Input and output arrays may be the same (in
place) or not (when the old values are still read by somebody). Rows of sparse tables that a clock does not touch keep
their momentum and moments as they are. Two blocks or one: an element's new value depends on that element alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numba
import numpy as np

from agileml.application import Array


class Optimizer(Protocol):
    """One step along a summed gradient."""

    @property
    def slots(self) -> int:
        """Arrays of state per block, each of the block's shape, zeros at first."""

    def step(
        self,
        clock: int,
        parameters: Array,
        gradient: Array,
        state: list[Array],
        new_parameters: Array,
        new_state: list[Array],
    ) -> None:
        """Take the step of `clock` (0-based). All arrays are flat and of one dtype; new_* may alias the old."""


@numba.njit(cache=True, nogil=True)
def _sgd(rate, p, g, p_new):  # type: ignore[no-untyped-def]
    for i in range(p.size):
        p_new[i] = p[i] - rate * g[i]


@numba.njit(cache=True, nogil=True)
def _momentum(rate, mu, p, g, m, p_new, m_new):  # type: ignore[no-untyped-def]
    for i in range(p.size):
        velocity = mu * m[i] + g[i]
        m_new[i] = velocity
        p_new[i] = p[i] - rate * velocity


@numba.njit(cache=True, nogil=True)
def _adam(rate, beta1, beta2, rest1, rest2, epsilon, unbias2, p, g, m, v, p_new, m_new, v_new):  # type: ignore[no-untyped-def]
    for i in range(p.size):
        first = beta1 * m[i] + rest1 * g[i]
        second = beta2 * v[i] + rest2 * (g[i] * g[i])
        m_new[i] = first
        v_new[i] = second
        p_new[i] = p[i] - rate * (first / (math.sqrt(second * unbias2) + epsilon))


@dataclass(frozen=True)
class Sgd:
    """w <- w - rate g."""

    learning_rate: float
    slots: int = 0

    def step(
        self,
        clock: int,
        parameters: Array,
        gradient: Array,
        state: list[Array],
        new_parameters: Array,
        new_state: list[Array],
    ) -> None:
        _sgd(parameters.dtype.type(self.learning_rate), parameters, gradient, new_parameters)


@dataclass(frozen=True)
class Momentum:
    """m <- mu m + g; w <- w - rate m (heavy ball, as torch.optim.SGD with momentum)."""

    learning_rate: float
    momentum: float = 0.9
    slots: int = 1

    def step(
        self,
        clock: int,
        parameters: Array,
        gradient: Array,
        state: list[Array],
        new_parameters: Array,
        new_state: list[Array],
    ) -> None:
        number = parameters.dtype.type
        _momentum(
            number(self.learning_rate),
            number(self.momentum),
            parameters,
            gradient,
            state[0],
            new_parameters,
            new_state[0],
        )


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction by the number of clocks (Kingma and Ba, 2015, algorithm 1)."""

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    slots: int = 2

    def step(
        self,
        clock: int,
        parameters: Array,
        gradient: Array,
        state: list[Array],
        new_parameters: Array,
        new_state: list[Array],
    ) -> None:
        number = parameters.dtype.type
        steps = clock + 1
        _adam(
            number(self.learning_rate / (1.0 - self.beta1**steps)),
            number(self.beta1),
            number(self.beta2),
            number(1.0 - self.beta1),
            number(1.0 - self.beta2),
            number(self.epsilon),
            number(1.0 / (1.0 - self.beta2**steps)),
            parameters,
            gradient,
            state[0],
            state[1],
            new_parameters,
            new_state[0],
            new_state[1],
        )


def optimizer(kind: str, **settings: Any) -> Optimizer:
    """Build the optimizer a config names; `settings` are its fields."""
    kinds: dict[str, type[Any]] = {"sgd": Sgd, "momentum": Momentum, "adam": Adam}
    if kind not in kinds:
        raise ValueError(f"optimizer {kind!r} is none of {', '.join(kinds)}")
    built: Optimizer = kinds[kind](**settings)
    return built


def take_step(
    algorithm: Optimizer,
    clock: int,
    parameters: Array,
    gradient: Array,
    state: list[Array],
    *,
    in_place: bool,
) -> tuple[Array, list[Array]]:
    """One step over a flat block; returns the new parameters and state, new arrays unless `in_place`."""
    new_parameters = parameters if in_place else np.empty_like(parameters)
    new_state = state if in_place else [np.empty_like(array) for array in state]
    algorithm.step(clock, parameters, gradient, state, new_parameters, new_state)
    return new_parameters, new_state
