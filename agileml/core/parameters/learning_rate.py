"""Learning rate schedules: factors of the optimizer's `learning_rate` that depend on the clock alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class Schedule(Protocol):
    """A factor of the learning rate by clock."""

    def factor(self, clock: int) -> float:
        """The factor of `clock` (0-based)."""


@dataclass(frozen=True)
class Steps:
    """The factor is multiplied by `by` every `every` clocks."""

    every: int
    by: float = 0.1
    warmup: int = 0

    def factor(self, clock: int) -> float:
        return _warm(clock, self.warmup) * self.by ** (clock // self.every)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 after the warm-up to `final` at clock `clocks` (Loshchilov and Hutter, 2017, equation 5)."""

    clocks: int
    final: float = 0.0
    warmup: int = 0

    def factor(self, clock: int) -> float:
        down = (1.0 + math.cos(math.pi * _way(clock, self.warmup, self.clocks))) / 2.0
        return _warm(clock, self.warmup) * (self.final + (1.0 - self.final) * down)


@dataclass(frozen=True)
class Linear:
    """A line from 1 after the warm-up to `final` at clock `clocks`."""

    clocks: int
    final: float = 0.0
    warmup: int = 0

    def factor(self, clock: int) -> float:
        way = _way(clock, self.warmup, self.clocks)
        return _warm(clock, self.warmup) * (1.0 + (self.final - 1.0) * way)


def _warm(clock: int, warmup: int) -> float:
    """1 / warmup, 2 / warmup, ... up to 1."""
    return min(1.0, (clock + 1) / warmup) if warmup else 1.0


def _way(clock: int, first: int, last: int) -> float:
    """The share of the way from clock `first` to clock `last`, 0 to 1."""
    return min(1.0, max(0.0, (clock - first) / max(1, last - first)))


SCHEDULES: dict[str, type[Any]] = {"steps": Steps, "cosine": Cosine, "linear": Linear}


def schedule(settings: Mapping[str, Any] | Schedule | None) -> Schedule | None:
    """Build the schedule that a config names (`kind` and its fields); None: a constant rate."""
    if settings is None or not isinstance(settings, Mapping):
        return settings
    fields = dict(settings)
    kind = fields.pop("kind")
    if kind not in SCHEDULES:
        raise ValueError(f"schedule {kind!r} is none of {', '.join(SCHEDULES)}")
    built: Schedule = SCHEDULES[kind](**fields)
    return built
