"""Optimizers that run inside a shard: SGD, momentum, Nesterov, Adagrad, Adam, AdamW, LAMB.

Each is one fused pass over a block, in the block's own precision (`kernels`). Input and output arrays may be the same
(in place) or not (while readers still need the old values). Rows of sparse tables that a clock does not touch keep
their momentum and moments as they are. The split into blocks does not matter: an element's new value depends on that
element alone, and with LAMB on the norms of its whole layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from agileml.application import Array, Table
from agileml.core.parameters import kernels
from agileml.core.parameters.layout import ALIGNMENT, read_only
from agileml.core.parameters.learning_rate import Schedule, schedule
from agileml.core.parameters.step_terms import PLAIN, StepTerms


class Optimizer(Protocol):
    """One step along a summed gradient."""

    @property
    def slots(self) -> int:
        """Arrays of state per block, each of the block's shape, zeros at first."""

    @property
    def clip_norm(self) -> float | None:
        """The norm to which the gradient of all parameters is scaled down; None: as it is."""

    @property
    def is_layerwise(self) -> bool:
        """A parameter's step depends on norms of the whole layer: on `StepTerms.norms`."""

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
        terms: StepTerms = ...,
    ) -> None:
        """Take the step of `clock` (0-based). All arrays are flat and of one dtype; new_* may alias the old."""


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """Settings of all optimizers. schedule: of the learning rate (None: constant). The gradient of all parameters
    together is scaled down to the norm clip_norm, its elements are clipped to [-clip, clip] (None: no limit), and
    weight_decay w is added to it (AdamW decays otherwise)."""

    learning_rate: float
    weight_decay: float = 0.0
    clip_norm: float | None = None
    clip: float | None = None
    schedule: Schedule | None = None

    @property
    def is_layerwise(self) -> bool:
        """No: an element's step depends on that element alone."""
        return False

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
        terms: StepTerms = PLAIN,
    ) -> None:
        number = parameters.dtype.type
        kernels.sgd(
            number(self.rate_at(clock) * terms.weight),
            number(terms.scale),
            number(self.weight_decay),
            number(self.clip or 0),
            parameters,
            gradient,
            new_parameters,
        )


@dataclass(frozen=True, kw_only=True)
class OneSlot(Shaping):
    """An optimizer with one array of state."""

    def kernel(self, weight: float) -> tuple[Callable[..., None], tuple[float, ...]]:
        """The compiled pass over a block, and the numbers that it takes after the learning rate, for this share of a
        clock."""
        raise NotImplementedError

    def step(
        self,
        clock: int,
        parameters: Array,
        gradient: Array,
        state: list[Array],
        new_parameters: Array,
        new_state: list[Array],
        terms: StepTerms = PLAIN,
    ) -> None:
        number = parameters.dtype.type
        kernel, numbers = self.kernel(terms.weight)
        kernel(
            number(self.rate_at(clock) * terms.weight),
            *map(number, numbers),
            number(terms.scale),
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

    def kernel(self, weight: float) -> tuple[Callable[..., None], tuple[float, ...]]:
        return kernels.nesterov if self.nesterov else kernels.momentum, (self.momentum,)


@dataclass(frozen=True)
class Adagrad(OneSlot):
    """s <- s + g^2; w <- w - rate g / (sqrt(s) + epsilon) (Duchi, Hazan and Singer, 2011, figure 1, diagonal).

    Of a share w' of a clock s <- s + w' g^2: a clock adds as much as in one step.
    """

    learning_rate: float = 0.01
    epsilon: float = 1e-10
    slots: int = 1

    def kernel(self, weight: float) -> tuple[Callable[..., None], tuple[float, ...]]:
        return kernels.adagrad, (self.epsilon, weight)


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
        terms: StepTerms = PLAIN,
    ) -> None:
        number = parameters.dtype.type
        steps = terms.steps(clock)
        rate = self.rate_at(clock) * terms.weight
        keep, decay = self.decays(rate)
        kernels.adam(
            number(rate / (1.0 - self.beta1**steps)),
            number(self.beta1),
            number(self.beta2),
            number(1.0 - self.beta1),
            number(1.0 - self.beta2),
            number(self.epsilon),
            number(1.0 / (1.0 - self.beta2**steps)),
            number(keep),
            number(terms.scale),
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


@dataclass(frozen=True)
class Lamb(Shaping):
    """LAMB: Adam's direction with weight decay, by layer as long as the layer's parameters (You et al., Large Batch
    Optimization for Deep Learning, ICLR 2020, algorithm 2, with the identity for phi).

    m <- beta1 m + (1 - beta1) g; v <- beta2 v + (1 - beta2) g^2; r = m' / (sqrt(v') + epsilon) + weight_decay w with m'
    and v' corrected for their bias; w <- w - rate |w| / |r| r, where the norms are of the whole layer, and their ratio
    is 1 if one of them is 0.
    """

    learning_rate: float = 0.001
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    slots: int = 2

    @property
    def is_layerwise(self) -> bool:
        """Yes."""
        return True

    def _numbers(self, clock: int, terms: StepTerms, number: Any) -> tuple[Any, ...]:
        """The numbers that the direction needs besides the arrays."""
        steps = clock + 1 - terms.skipped
        found = (
            self.beta1,
            self.beta2,
            1.0 - self.beta1,
            1.0 - self.beta2,
            self.epsilon,
            1.0 / (1.0 - self.beta1**steps),
            1.0 / (1.0 - self.beta2**steps),
            terms.scale,
            self.weight_decay,
            self.clip or 0,
        )
        return tuple(map(number, found))

    def squares(
        self, clock: int, parameters: Array, gradient: Array, state: list[Array], terms: StepTerms
    ) -> tuple[Array, Array]:
        """The square sums of every 16 elements, of the parameters and of the direction r, in float64."""
        numbers = self._numbers(clock, terms, parameters.dtype.type)
        sums = np.empty((2, -(-parameters.size // ALIGNMENT)))
        arrays = (read_only(array) for array in (parameters, gradient, *state))
        kernels.lamb_squares(*numbers, *arrays, sums[0], sums[1])
        return sums[0], sums[1]

    def step(
        self,
        clock: int,
        parameters: Array,
        gradient: Array,
        state: list[Array],
        new_parameters: Array,
        new_state: list[Array],
        terms: StepTerms = PLAIN,
    ) -> None:
        number = parameters.dtype.type
        kernels.lamb(
            number(self.rate_at(clock) * terms.trust),
            *self._numbers(clock, terms, number),
            parameters,
            gradient,
            *state,
            new_parameters,
            *new_state,
        )


KINDS: dict[str, type[Any]] = {
    "sgd": Sgd,
    "momentum": Momentum,
    "adagrad": Adagrad,
    "adam": Adam,
    "adamw": AdamW,
    "lamb": Lamb,
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
    terms: StepTerms = PLAIN,
) -> tuple[Array, list[Array]]:
    """One step over a flat block. Returns the new parameters and state, in new arrays unless they are taken in place.

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
        terms,
    )
    return new_parameters, new_state
