"""Evaluations of a run, and the decisions that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Evaluated:
    """The parameters after `clock` clocks were evaluated: the mean of each metric over what all machines measured."""

    kind: ClassVar = "evaluation"
    clock: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class StopDecided:
    """A callback or the rule of early stopping ends the run with its next cut."""

    kind: ClassVar = "stop_decided"
    clock: int
    reason: str


@dataclass(frozen=True)
class BestKept:
    """The parameters after `clock` clocks are the best so far by `metric`, and are kept in best.safetensors."""

    kind: ClassVar = "best"
    clock: int
    metric: str
    value: float


@dataclass(frozen=True)
class LossScaleChanged:
    """The scale of the losses after `clock` clocks, and `skipped`: how many of them took no step."""

    kind: ClassVar = "loss_scale"
    clock: int
    scale: float
    skipped: int
    reason: str
