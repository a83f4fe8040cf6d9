"""An optimizer with separate settings for some parameters. It leaves parameters alone that got no gradient.

A block of a dense table is cut where one parameter ends and the next begins. Neighbours with the same settings take
their step together. Where the cuts are does not change a result: each element's step depends on that element alone, or
with LAMB, which takes its step layer by layer, on norms of the whole layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numba
import numpy as np

from agileml.application import Array, Table
from agileml.core.parameters.layout import read_only
from agileml.core.parameters.optimizer import Lamb, Optimizer
from agileml.core.parameters.step_terms import PLAIN, StepTerms, trust_ratio


@dataclass(frozen=True)
class _LikeDefault:
    """Slots, norm and rate, which all rules of a run share with the default one."""

    default: Optimizer

    @property
    def slots(self) -> int:
        """Arrays of state per block."""
        return self.default.slots

    @property
    def clip_norm(self) -> float | None:
        """The norm to which the gradient of all parameters is scaled down; None: as it is."""
        return self.default.clip_norm

    @property
    def is_layerwise(self) -> bool:
        """A parameter's step depends on norms of the whole layer."""
        return self.default.is_layerwise

    def rate_at(self, clock: int) -> float:
        """The learning rate of the default's clock (0-based)."""
        return self.default.rate_at(clock)


@dataclass(frozen=True)
class GroupedOptimizer(_LikeDefault):
    """`default`, and by the name of a parameter another rule of the same kind. All have the same slots."""

    by_name: Mapping[str, Optimizer]

    def for_block(self, table: Table, start: int, stop: int) -> Optimizer:
        """The rules of the parameters that lie in elements [start, stop) of a dense table; of any rows of a sparse one
        the rule of its parameter."""
        if table.sparse:
            return self.by_name.get(table.ranges[0].name, self.default) if table.ranges else self.default
        layers = [(part.name, part.stop) for part in table.ranges]
        if self.is_layerwise and not layers:
            layers = [(table.name, table.rows * table.columns)]
        pieces: list[_Piece] = []
        first = 0
        for name, end in layers:
            a, b = max(first, start), min(end, stop)
            first = end
            if a < b:
                pieces.append(_Piece(name, a - start, b - start, self.by_name.get(name, self.default)))
        kind = LayerwiseBlock if self.is_layerwise else _PiecewiseOptimizer
        return kind(self.default, tuple(pieces)) if pieces else self.default

    def step(self, *arguments: Any) -> None:
        """A step of elements whose place is not known: by the default."""
        self.default.step(*arguments)


@dataclass(frozen=True)
class _Piece:
    name: str
    start: int
    stop: int
    optimizer: Optimizer


@dataclass(frozen=True)
class _Pieces(_LikeDefault):
    """The parameters that lie in one block."""

    pieces: tuple[_Piece, ...]

    @cached_property
    def _bounds(self) -> tuple[Array, Array]:
        """Where the pieces start and stop."""
        starts = [piece.start for piece in self.pieces]
        return np.array(starts, np.int64), np.array([piece.stop for piece in self.pieces], np.int64)

    def for_block(self, table: Table, start: int, stop: int) -> Optimizer:
        raise AssertionError("a block has its optimizer already")


@dataclass(frozen=True)
class _PiecewiseOptimizer(_Pieces):
    """The steps of one block, piece by piece."""

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
        for start, stop, rule in self._runs(reached(gradient, *self._bounds)):
            at = slice(start, stop)
            old, new = [array[at] for array in state], [array[at] for array in new_state]
            if rule is not None:
                rule.step(clock, parameters[at], gradient[at], old, new_parameters[at], new, terms)
            else:
                _leave((parameters[at], *old), (new_parameters[at], *new))

    def _runs(self, found: Array) -> list[tuple[int, int, Optimizer | None]]:
        """(start, stop, rule) of neighbours with one rule; None: they got no gradient."""
        runs: list[tuple[int, int, Optimizer | None]] = []
        for piece, is_reached in zip(self.pieces, found, strict=True):
            rule = piece.optimizer if is_reached else None
            if runs and runs[-1][2] is rule:
                runs[-1] = (runs[-1][0], piece.stop, rule)
            else:
                runs.append((piece.start, piece.stop, rule))
        return runs


@dataclass(frozen=True)
class LayerwiseBlock(_Pieces):
    """The steps of one block by LAMB, layer by layer."""

    def squares(
        self, clock: int, parameters: Array, gradient: Array, state: list[Array], terms: StepTerms
    ) -> dict[str, tuple[Array, Array]]:
        """By layer, the square sums of every 16 of its elements in this block: of the parameters and of the direction.

        Layers without a gradient count as well: a block with a part of a layer cannot know whether the rest got one.
        """
        found = {}
        for piece in self.pieces:
            at, rule = slice(piece.start, piece.stop), piece.optimizer
            assert isinstance(rule, Lamb), rule
            slots = [array[at] for array in state]
            found[piece.name] = rule.squares(clock, parameters[at], gradient[at], slots, terms)
        return found

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
        for piece, is_reached in zip(self.pieces, reached(gradient, *self._bounds), strict=True):
            at = slice(piece.start, piece.stop)
            old, new = [array[at] for array in state], [array[at] for array in new_state]
            if not is_reached:
                _leave((parameters[at], *old), (new_parameters[at], *new))
                continue
            own = replace(terms, trust=trust_ratio(*terms.norms[piece.name]))
            piece.optimizer.step(clock, parameters[at], gradient[at], old, new_parameters[at], new, own)


def _leave(sources: Iterable[Array], goals: Iterable[Array]) -> None:
    """Copy each source to its goal, unless they are the same array."""
    for source, goal in zip(sources, goals, strict=True):
        if goal.ctypes.data != source.ctypes.data:
            goal[:] = source


def reached(gradient: Array, starts: Array, stops: Array) -> Array:
    """For each range [start, stop) of a summed gradient, whether some unit had a gradient for it: True or False."""
    found: Array = _reached(read_only(gradient), starts, stops)
    return found


def load_kernel(dtype: str) -> None:
    """Load or compile the kernels that the first step would otherwise wait for."""
    _reached(read_only(np.zeros(1, dtype)), np.zeros(1, np.int64), np.ones(1, np.int64))


@numba.njit(cache=True, nogil=True)
def _reached(gradient, starts, stops):  # type: ignore[no-untyped-def]
    """For each piece, whether an element of its gradient is not -0.0. A piece with a gradient ends at its first one."""
    found = np.zeros(starts.size, np.bool_)
    for piece in range(starts.size):
        for i in range(starts[piece], stops[piece]):
            if gradient[i] != 0 or math.copysign(1.0, gradient[i]) > 0:
                found[piece] = True
                break
    return found
