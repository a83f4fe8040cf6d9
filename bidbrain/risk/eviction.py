"""How soon a price passes a bid: exact tables from price history (thesis, section 4.3.1).

For a market and a bid delta (bid - price at the start) every second of a training window is a start instant. The starts
between two changes of the price share the instant T of their eviction, so their lead times T - s are a run of
consecutive integers: the tables count runs, not samples, and are exact.

A start counts only if its whole horizon lies inside the window and the recording has no hole there; nothing after the
window is read. An eviction at the horizon itself does not count: the hour was finished and paid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from numba import njit

from bidbrain.history.prices import History, Ints, Market, Steps
from bidbrain.instants import Interval
from bidbrain.money import HOUR_S, micro_usd

Floats = npt.NDArray[np.float64]
MINUTES = 60
DELTAS_USD = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015),
    *(0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4),
)
DELTAS_MICRO_USD = tuple(micro_usd(delta) for delta in DELTAS_USD)


@dataclass(frozen=True)
class PriceNow:
    """The input of an eviction model: the price and the highest one of the last two hours (micro-dollars/h)."""

    price: int
    recent_high: int


@dataclass(frozen=True)
class Outlook:
    """The outlook of an allocation over a horizon (s)."""

    eviction_probability: float
    median_to_eviction_s: float  # among the evicted; the horizon if there are none
    mean_held_s: float  # the survivors count with the whole horizon
    mean_useful_s: float  # as mean_held_s, less a boot at the start


class EvictionModel(Protocol):
    """Predicts evictions; one protocol for every source of knowledge about them."""

    def outlook(self, market: Market, bid_delta: int, now: PriceNow, minutes: int) -> Outlook:
        """`bid_delta` in micro-dollars above the price now; `minutes` the horizon, 0 .. 60."""
        ...


def delta_index(deltas: Sequence[int] | Ints, bid_delta: int) -> int:
    """The largest delta that is not above `bid_delta`; the smallest if all are."""
    return max(0, int(np.searchsorted(np.asarray(deltas), bid_delta, side="right")) - 1)


@dataclass(frozen=True, eq=False)
class EvictionTable:
    """beta and median time to eviction by (market, delta, minutes).

    beta[m, d, j]: share of the start instants whose eviction comes within j minutes; median_s[m, d, j]: median
    lead time among those (s; 60 j where there are none). starts[m]: how many instants (s) were counted.
    """

    markets: tuple[Market, ...]
    deltas: tuple[int, ...]
    beta: Floats
    median_s: Floats
    mean_held_s: Floats
    starts: Ints

    @staticmethod
    def train(
        history: History,
        markets: Sequence[Market],
        window: Interval,
        deltas: Sequence[int] = DELTAS_MICRO_USD,
    ) -> EvictionTable:
        """Exact table over every start second of `window`; a market without any start is never evicted there."""
        assert list(deltas) == sorted(set(deltas)), "deltas must increase"
        steps = np.array(deltas, np.int64)
        shape = (len(markets), len(deltas), MINUTES + 1)
        beta, median, held = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        starts = np.zeros(len(markets), np.int64)
        for number, market in enumerate(markets):
            counts = np.zeros((len(deltas), HOUR_S + 1), np.int64)
            prices = history.steps[market]
            for piece in history.usable(window):
                starts[number] += _count_leads(
                    prices.times, prices.prices, piece.start_s, piece.end_s, steps, HOUR_S, counts
                )
            _summarise(counts, int(starts[number]), beta[number], median[number], held[number])
        return EvictionTable(tuple(markets), tuple(deltas), beta, median, held, starts)

    def outlook(self, market: Market, bid_delta: int, now: PriceNow, minutes: int) -> Outlook:
        at = (self.markets.index(market), delta_index(self.deltas, bid_delta), minutes)
        held = float(self.mean_held_s[at])
        return Outlook(float(self.beta[at]), float(self.median_s[at]), held, held)


@njit(cache=True)
def _count_leads(
    times: Ints, prices: Ints, start_s: int, end_s: int, deltas: Ints, horizon_s: int, counts: Ints
) -> int:
    """Add to counts[d, lead] how many starts in [start_s, end_s - horizon_s] have that lead time < horizon_s.

    Returns the number of starts. Works on differences first, one run of consecutive leads per step and delta.
    """
    n = len(times)
    last_s = end_s - horizon_s
    runs = np.zeros((len(deltas), horizon_s + 1), np.int64)
    total = 0
    first = max(0, int(np.searchsorted(times, start_s, side="right")) - 1)
    for i in range(first, n):
        if times[i] > last_s:
            break
        low = max(times[i], start_s)
        high = last_s if i + 1 == n else min(times[i + 1] - 1, last_s)  # the last start of this step
        if high < low:
            continue
        total += high - low + 1
        j = i + 1
        for d in range(len(deltas)):
            bid = prices[i] + deltas[d]
            while j < n and times[j] - high < horizon_s and prices[j] <= bid:
                j += 1
            if j == n or times[j] - high >= horizon_s:
                break  # a higher bid is not passed within the horizon either
            runs[d, times[j] - high] += 1
            runs[d, min(times[j] - low, horizon_s - 1) + 1] -= 1
    for d in range(len(deltas)):
        running = 0
        for lead in range(horizon_s):
            running += runs[d, lead]
            counts[d, lead] += running
    return total


@njit(cache=True)
def _summarise(counts: Ints, starts: int, beta: Floats, median_s: Floats, held_s: Floats) -> None:
    """Fill beta, the lower median and the mean held time at 0 .. 60 minutes from counts by lead second."""
    for d in range(counts.shape[0]):
        below = 0  # starts with a lead time under 60 j seconds
        spent = 0  # the sum of those lead times
        half_at = 0  # moving lead that holds the median
        half_below = counts[d, 0]
        for j in range(beta.shape[1]):
            horizon = 60 * j
            for lead in range(max(0, horizon - 60), horizon):
                below += counts[d, lead]
                spent += lead * counts[d, lead]
            if starts > 0:
                beta[d, j] = below / starts
                held_s[d, j] = (spent + (starts - below) * horizon) / starts
            else:
                held_s[d, j] = horizon
            if below > 0:
                while 2 * half_below < below:
                    half_at += 1
                    half_below += counts[d, half_at]
                median_s[d, j] = half_at
            else:
                median_s[d, j] = horizon


def mean_time_to_eviction_s(history: History, market: Market, bid_micro_usd: int, window: Interval) -> float:
    """Mean over all seconds of `window` at or below the bid of the time until the price passes it.

    The end of the window counts as an eviction (a low estimate, never an invented one). inf if the price was
    never at or below the bid; it is the MTTF of Young's checkpoint interval.
    """
    total, seconds = 0.0, 0
    for piece in history.usable(window):
        for stay in _stays(history.steps[market], bid_micro_usd, piece):
            seconds += stay
            total += stay * (stay + 1) / 2
    return total / seconds if seconds else float("inf")


def _stays(steps: Steps, bid_micro_usd: int, window: Interval) -> list[int]:
    """Lengths (s) of the stretches of `window` with a price at or below the bid."""
    held = steps.seconds_by_step(window)
    stays: list[int] = []
    running = 0
    for price, seconds in zip(steps.prices.tolist(), held.tolist(), strict=True):
        if seconds == 0:
            continue
        if price <= bid_micro_usd:
            running += seconds
        elif running:
            stays.append(running)
            running = 0
    return [*stays, running] if running else stays
