"""Decides when to cut the stages of a pipeline anew, because their machines are not as fast as the cut assumes.

The thesis (6.2.3) leaves unequal machines to future work; so does its planner at run time. Here the machines' own
reports say how fast each is, and a cut that suits them better is taken when it has been worth it for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agileml.core.protocol.job import PipelineRules
from agileml.core.stage.pipeline_stages import least_slowest


@dataclass(frozen=True)
class RecutRule:
    """How much evidence another cut needs. `gain`: the share of a clock that it must be expected to save, at `looks`
    looks in a row. `worth`: what it must save over the rest of the run, in costs of a change. `clocks`, `apart_s`: a
    look is so many clocks and seconds after the one before it, or after a change."""

    gain: float = 0.1
    looks: int = 3
    worth: float = 2.0
    clocks: int = 4
    apart_s: float = 2.0


@dataclass(frozen=True)
class Recut:
    """The seconds of a clock with the present stages and with the best ones, by the speeds of the machines."""

    now_s: float
    best_s: float

    @property
    def gain(self) -> float:
        """The share of a clock that the best stages save."""
        return 1.0 - self.best_s / self.now_s if self.now_s > 0 else 0.0

    @property
    def sentence(self) -> str:
        """Both in words."""
        return f"stages by speed: {self.best_s:.3g} s a clock expected, {self.now_s:.3g} s with the stages so far"


def recut(
    rules: PipelineRules, ranges: Sequence[tuple[int, int]], units: int, speeds: Sequence[float]
) -> Recut:
    """Compare the present stages, (first, behind the last) partition of each, with the best for the same machines.

    `speeds`: of the machines in the order of the stages, where a machine of speed 1 takes the seconds of the layers.
    """
    best = least_slowest(rules.weights, len(ranges), speeds)
    return Recut(_clock_s(rules, ranges, units, speeds), _clock_s(rules, best, units, speeds))


def _clock_s(
    rules: PipelineRules, ranges: Sequence[tuple[int, int]], units: int, speeds: Sequence[float]
) -> float:
    """The slowest stage computes all units; with a flush the pipeline also fills and runs empty once."""
    unit_s = [sum(rules.weights[a:b]) / speed for (a, b), speed in zip(ranges, speeds, strict=True)]
    slowest_s = max(unit_s)
    return units * slowest_s + (sum(unit_s) - slowest_s if rules.flushes else 0.0)
