"""Evidence about pools from recordings, before a job begins: capacity that fell, prices that passed on-demand. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from bidbrain.history.availability import Trace
from bidbrain.history.prices import Market, Steps
from bidbrain.instants import Interval
from bidbrain.money import HOUR_S
from bidbrain.risk.bands import packaged_bands
from bidbrain.risk.book import Known
from bidbrain.risk.pooled import HALF_LIFE_H, batch, pooled_rates
from bidbrain.risk.regime import Regime, lost
from bidbrain.risk.tally import Cell

RECENT_H = 48  # of the recording, replayed for the regimes


def known_from_pools(pools: Sequence[Trace], until_s: int) -> Known:
    """From the capacity before `until_s`: every drop is an event that takes so many nodes."""
    sums = {pool.market: _cell_of(pool, until_s) for pool in pools}
    rates = pooled_rates(sums, packaged_bands().rate)
    regimes = {
        pool.market: _regime_of(pool, until_s, rates.rate(pool.market), rates.correlation) for pool in pools
    }
    return Known(until_s, sums, None, None, regimes)


def _cell_of(pool: Trace, until_s: int) -> Cell:
    counts = pool.counts[: until_s // pool.tick_s + 1]
    if len(counts) < 2:
        return Cell()
    before, after = counts[:-1], counts[1:]
    ends_s = np.arange(1, len(counts)) * pool.tick_s
    weight = 0.5 ** ((until_s - ends_s) / HOUR_S / HALF_LIFE_H)
    drop = np.maximum(0, before - after)
    fell = drop > 0
    return Cell(
        node_h=float(weight @ before) * pool.tick_s / HOUR_S,
        lost=float(weight @ drop),
        events=float(weight @ fell),
        extra=float(weight @ np.where(fell, drop - 1, 0)),
        beside=float(weight @ np.where(fell, before - 1, 0)),
    )


def _regime_of(pool: Trace, until_s: int, usual: float, correlation: float) -> Regime:
    last = min(until_s // pool.tick_s, len(pool.counts) - 1)
    first = max(0, last - RECENT_H * HOUR_S // pool.tick_s)
    regime = Regime(first * pool.tick_s)
    counts = pool.counts[first : last + 1].tolist()
    for tick, (before, after) in enumerate(pairwise(counts), first + 1):
        if before != after or tick == last:
            regime.advance(tick * pool.tick_s, before * usual / batch(correlation, before))
            if after < before:
                regime.chances = lost(regime.chances)
    return regime


def known_from_prices(
    steps: Mapping[Market, Steps], on_demand: Mapping[Market, int], window: Interval
) -> Known:
    """From the prices of a window: a machine is held while the price is at or below on-demand, and lost above it."""
    sums = {market: _cell_of_prices(steps[market], on_demand[market], window) for market in steps}
    return Known(window.end_s, sums)


def _cell_of_prices(steps: Steps, on_demand: int, window: Interval) -> Cell:
    below = steps.prices <= on_demand
    weight = 0.5 ** ((window.end_s - steps.times) / HOUR_S / HALF_LIFE_H)
    inside = (steps.times >= window.start_s) & (steps.times < window.end_s)
    crossed = np.append(False, below[:-1] & ~below[1:]) & inside
    hours = steps.seconds_by_step(window) / HOUR_S
    lost_machines = float(np.minimum(weight, 1.0) @ crossed)
    return Cell(float(np.minimum(weight, 1.0) @ (hours * below)), lost_machines, lost_machines)
