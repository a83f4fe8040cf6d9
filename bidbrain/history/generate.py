"""Made markets, for people without recordings: seeded, of a given character, and marked as made.

Prices move between a floor and spikes, as the markets of 2016 did: a slow level that jumps now and then, small steps
around it many times a day, and spikes that rise above on-demand for minutes to hours. A made market is no
evidence about a real one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

import numpy as np

from bidbrain.history.prices import History, Market, Steps
from bidbrain.instants import DAY_S, Interval

PRODUCT = "Linux/UNIX"
MADE = "made by `proteus prices generate`"


class Character(StrEnum):
    """How a made market behaves."""

    CALM = "calm"  # like us-east-1 d2 of 2016: many small steps, a spike every few days
    TURBULENT = "turbulent"  # like c3 of 2015: spikes several times a day
    SMOOTH = "smooth"  # like the markets since 2017: a few small steps a day, never above on-demand


@dataclass(frozen=True)
class Shape:
    """Rates per day, shares of the on-demand price."""

    floor: float
    steps_per_day: float
    step: float  # standard deviation of a step's logarithm
    spikes_per_day: float
    spike: float  # median height over on-demand
    spike_hours: float


SHAPES = {
    Character.CALM: Shape(0.105, 220.0, 0.012, 0.35, 0.5, 1.2),
    Character.TURBULENT: Shape(0.16, 400.0, 0.03, 3.0, 0.9, 0.8),
    Character.SMOOTH: Shape(0.35, 3.0, 0.006, 0.0, 0.0, 0.0),
}


def generate(
    markets: Sequence[tuple[str, str, int]],
    window: Interval,
    character: Character,
    seed: int,
    *,
    spare_s: int = 0,
) -> History:
    """A made history of (type, zone, on-demand micro-dollars/h) over a window; equal seeds, equal prices.

    `spare_s`: it goes on for so long after the window, whose prices stay as they are without.
    """
    end_s = window.end_s + spare_s
    steps: dict[Market, Steps] = {}
    for number, (kind, zone, on_demand) in enumerate(markets):
        rng = np.random.default_rng([seed, number])
        found = _market(on_demand, window, SHAPES[character], rng)
        if spare_s:
            found = _followed_by(
                found, _market(on_demand, Interval(window.end_s, end_s), SHAPES[character], rng)
            )
        steps[Market(kind, zone, PRODUCT)] = found
    return History(steps, end_s, (), (MADE,))


def _followed_by(first: Steps, then: Steps) -> Steps:
    return Steps.from_rows(chain(first.times, then.times), chain(first.prices, then.prices))


def _market(on_demand: int, window: Interval, shape: Shape, rng: np.random.Generator) -> Steps:
    """One market: a mean-reverting walk of the logarithm over the floor, spikes laid over it."""
    count = max(1, rng.poisson(shape.steps_per_day * window.seconds / DAY_S))
    times = np.sort(rng.integers(window.start_s, window.end_s, count))
    times[0] = window.start_s
    level = np.empty(count)
    level[0] = 0.0
    noise = rng.normal(0.0, shape.step, count)
    # Now and then the level itself moves for a day or so.
    jump = rng.random(count) < 0.5 / max(1.0, shape.steps_per_day)
    target = 0.0
    for i in range(1, count):
        if jump[i]:
            target = abs(rng.normal(0.0, 0.35)) if target == 0.0 else 0.0
        level[i] = level[i - 1] + 0.05 * (target - level[i - 1]) + noise[i]
    rows = dict(zip(times.tolist(), _price(on_demand, shape.floor * np.exp(np.abs(level))), strict=True))
    plain = Steps.from_rows(rows.keys(), rows.values())
    ordered = sorted(rows)
    for _ in range(rng.poisson(shape.spikes_per_day * window.seconds / DAY_S)):
        begin = int(rng.integers(window.start_s, window.end_s))
        length = max(60, int(rng.exponential(shape.spike_hours * 3600)))
        height = shape.spike * math.exp(rng.normal(0.0, 0.8))
        end = min(window.end_s - 1, begin + length)
        first, last = bisect_right(ordered, begin), bisect_right(ordered, end)
        for at in ordered[first:last]:
            del rows[at]
        ordered[first:last] = [at for at in sorted({begin, end}) if at not in rows]
        rows[begin] = int(_price(on_demand, np.array([max(height, shape.floor)]))[0])
        if end > begin:
            rows[end] = plain.price_at(end) or rows[begin]
    return Steps.from_rows(ordered, (rows[at] for at in ordered))


def _price(on_demand: int, share: np.typing.NDArray[np.float64]) -> list[int]:
    """Shares of the on-demand price as prices of whole 0.0001 $, at least one of them, at most ten times on-demand."""
    cents = np.clip(np.round(share * on_demand / 100), 1, on_demand / 10)
    return (cents.astype(np.int64) * 100).tolist()
