"""Optimizers that run inside a shard: SGD, momentum, Nesterov, Adagrad, Adam, AdamW.

Each is one fused pass over a block, in the block's own precision. Input and output arrays may be the same (in
place) or not (while readers still need the old values). Rows of sparse tables that a clock does not touch keep
their momentum and moments as they are. Two blocks or one: an element's new value depends on that element alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numba
import numpy as np

from agileml.application import Array, Table
from agileml.core.parameters.layout import read_only
from agileml.core.parameters.learning_rate import Schedule, schedule


class Optimizer(Protocol):
    """One step along a summed gradient."""

    @property
    def slots(self) -> int:
        """Arrays of state per block, each of the block's shape, zeros at first."""

    @property
    def clip_norm(self) -> float | None:
        """The norm to which the gradient of all parameters is scaled down; None: as it is."""

    def rate_at(self, clock: int) -> float:
        """The learning rate of a clock (0-based)."""

    def for_block(self, table: Table, start: int, stop: int) -> Optimizer:
        """The optimizer of elements [start, stop) of a dense table, or of these rows of a sparse one."""

    def step(
        self,
        clock: int,
        parameters: Array,
        gradient: Array,
        state: list[Array],
        new_parameters: Array,
        new_state: list[Array],
        scale: float = 1.0,
        skipped: int = 0,
    ) -> None:
        """Take the step of `clock` (0-based) along `scale` times the gradient, when `skipped` clocks before it took
        none. All arrays are flat and of one dtype; new_* may alias the old."""


@numba.njit(cache=True, nogil=True, inline="always")
def _shaped(g, p, scale, decay, clip):  # type: ignore[no-untyped-def]
    """The gradient times scale, clipped to [-clip, clip] (0: not), plus decay p. NaN stays NaN."""
    g = g * scale
    if clip > 0:
        g = clip if g > clip else (-clip if g < -clip else g)
    return g + decay * p if decay > 0 else g


@numba.njit(cache=True, nogil=True)
def _sgd(rate, scale, decay, clip, p, g, p_new):  # type: ignore[no-untyped-def]
    for i in range(p.size):
        p_new[i] = p[i] - rate * _shaped(g[i], p[i], scale, decay, clip)


@numba.njit(cache=True, nogil=True)
def _momentum(rate, mu, scale, decay, clip, p, g, m, p_new, m_new):  # type: ignore[no-untyped-def]
    for i in range(p.size):
        velocity = mu * m[i] + _shaped(g[i], p[i], scale, decay, clip)
        m_new[i] = velocity
        p_new[i] = p[i] - rate * velocity


@numba.njit(cache=True, nogil=True)
def _nesterov(rate, mu, scale, decay, clip, p, g, m, p_new, m_new):  # type: ignore[no-untyped-def]
    for i in range(p.size):
        shaped = _shaped(g[i], p[i], scale, decay, clip)
        velocity = mu * m[i] + shaped
        m_new[i] = velocity
        p_new[i] = p[i] - rate * (shaped + mu * velocity)


@numba.njit(cache=True, nogil=True)
def _adagrad(rate, epsilon, scale, decay, clip, p, g, s, p_new, s_new):  # type: ignore[no-untyped-def]
    for i in range(p.size):
        shaped = _shaped(g[i], p[i], scale, decay, clip)
        squares = s[i] + shaped * shaped
        s_new[i] = squares
        p_new[i] = p[i] - rate * (shaped / (math.sqrt(squares) + epsilon))


@numba.njit(cache=True, nogil=True)
def _adam(  # type: ignore[no-untyped-def]
    rate,
    beta1,
    beta2,
    rest1,
    rest2,
    epsilon,
    unbias2,
    keep,
    scale,
    decay,
    clip,
    p,
    g,
    m,
    v,
    p_new,
    m_new,
    v_new,
):
    for i in range(p.size):
        shaped = _shaped(g[i], p[i], scale, decay, clip)
        first = beta1 * m[i] + rest1 * shaped
        second = beta2 * v[i] + rest2 * (shaped * shaped)
        m_new[i] = first
        v_new[i] = second
        p_new[i] = keep * p[i] - rate * (first / (math.sqrt(second * unbias2) + epsilon))


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """Settings of all optimizers: a learning rate schedule (None: constant), the longest norm of the gradient of all
    parameters together, the largest size of each of its elements (None: no limit), then weight_decay w added to it
    (AdamW decays otherwise)."""

    learning_rate: float
    weight_decay: float = 0.0
    clip_norm: float | None = None
    clip: float | None = None
    schedule: Schedule | None = None

    def rate_at(self, clock: int) -> float:
        """The learning rate of a clock (0-based)."""
        return (
            self.learning_rate if self.schedule is None else self.learning_rate * self.schedule.factor(clock)
        )

    def for_block(self, table: Table, start: int, stop: int) -> Optimizer:
        """Itself: the same rule for every element."""
        return cast("Optimizer", self)


@dataclass(frozen=True)
class Sgd(Shaping):
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
        scale: float = 1.0,
        skipped: int = 0,
    ) -> None:
        number = parameters.dtype.type
        _sgd(
            number(self.rate_at(clock)),
            number(scale),
            number(self.weight_decay),
            number(self.clip or 0),
            parameters,
            gradient,
            new_parameters,
        )


@dataclass(frozen=True, kw_only=True)
class OneSlot(Shaping):
    """An optimizer with one array of state."""

    def kernel(self) -> tuple[Callable[..., None], float]:
        """The compiled pass over a block, and the number that it takes besides the learning rate."""
        raise NotImplementedError

    def step(
        self,
        clock: int,
        parameters: Array,
        gradient: Array,
        state: list[Array],
        new_parameters: Array,
        new_state: list[Array],
        scale: float = 1.0,
        skipped: int = 0,
    ) -> None:
        number = parameters.dtype.type
        kernel, setting = self.kernel()
        kernel(
            number(self.rate_at(clock)),
            number(setting),
            number(scale),
            number(self.weight_decay),
            number(self.clip or 0),
            parameters,
            gradient,
            state[0],
            new_parameters,
            new_state[0],
        )


@dataclass(frozen=True)
class Momentum(OneSlot):
    """m <- mu m + g; w <- w - rate m (heavy ball, as torch.optim.SGD with momentum).

    Nesterov: w <- w - rate (g + mu m) with the new m, as torch.optim.SGD does it.
    """

    learning_rate: float
    momentum: float = 0.9
    slots: int = 1
    nesterov: bool = False

    def kernel(self) -> tuple[Callable[..., None], float]:
        return _nesterov if self.nesterov else _momentum, self.momentum


@dataclass(frozen=True)
class Adagrad(OneSlot):
    """s <- s + g^2; w <- w - rate g / (sqrt(s) + epsilon) (Duchi, Hazan and Singer, 2011, figure 1, diagonal)."""

    learning_rate: float = 0.01
    epsilon: float = 1e-10
    slots: int = 1

    def kernel(self) -> tuple[Callable[..., None], float]:
        return _adagrad, self.epsilon


@dataclass(frozen=True)
class Adam(Shaping):
    """Adam with bias correction by the number of steps (Kingma and Ba, 2015, algorithm 1)."""

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
        scale: float = 1.0,
        skipped: int = 0,
    ) -> None:
        number = parameters.dtype.type
        steps = clock + 1 - skipped
        rate = self.rate_at(clock)
        keep, decay = self.decays(rate)
        _adam(
            number(rate / (1.0 - self.beta1**steps)),
            number(self.beta1),
            number(self.beta2),
            number(1.0 - self.beta1),
            number(1.0 - self.beta2),
            number(self.epsilon),
            number(1.0 / (1.0 - self.beta2**steps)),
            number(keep),
            number(scale),
            number(decay),
            number(self.clip or 0),
            parameters,
            gradient,
            state[0],
            state[1],
            new_parameters,
            new_state[0],
            new_state[1],
        )

    def decays(self, rate: float) -> tuple[float, float]:
        """(factor of the parameters in the step, share of the parameters added to the gradient)."""
        return 1.0, self.weight_decay


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay does not pass through the moments: w <- (1 - rate weight_decay) w - ...

    (Loshchilov and Hutter, 2019, algorithm 2, with the rate multiplied in as torch.optim.AdamW does.)
    """

    weight_decay: float = 0.01

    def decays(self, rate: float) -> tuple[float, float]:
        return 1.0 - rate * self.weight_decay, 0.0


KINDS: dict[str, type[Any]] = {
    "sgd": Sgd,
    "momentum": Momentum,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamw": AdamW,
}


def optimizer(kind: str, **settings: Any) -> Optimizer:
    """Build the optimizer that a config names. `settings` are its fields; `schedule` may be a mapping."""
    if kind not in KINDS:
        raise ValueError(f"optimizer {kind!r} is none of {', '.join(KINDS)}")
    if "schedule" in settings:
        settings["schedule"] = schedule(settings["schedule"])
    built: Optimizer = KINDS[kind](**settings)
    return built


def take_step(
    algorithm: Optimizer,
    clock: int,
    parameters: Array,
    gradient: Array,
    state: list[Array],
    *,
    in_place: bool,
    state_in_place: bool = False,
    into: Array | None = None,
    scale: float = 1.0,
    skipped: int = 0,
) -> tuple[Array, list[Array]]:
    """One step over a flat block, along `scale` times the gradient, after `skipped` clocks without one. Returns the new
    parameters and state, in new arrays unless they are taken in place.

    `into`: an array for the new parameters.
    """
    if in_place:
        into = parameters
    new_parameters = np.empty_like(parameters) if into is None else into
    new_state = state if in_place or state_in_place else [np.empty_like(array) for array in state]
    # numba compiles a second kernel for read-only arrays, as from the network: always pass read-only views.
    algorithm.step(
        clock,
        read_only(parameters),
        read_only(gradient),
        [read_only(a) for a in state],
        new_parameters,
        new_state,
        scale,
        skipped,
    )
    return new_parameters, new_state
