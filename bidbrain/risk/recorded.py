"""Evidence about pools from recordings, before a job begins: capacity that fell, prices that passed on-demand. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bidbrain.history.availability import Trace
from bidbrain.history.prices import NEVER_S, History, Ints, Market, Steps
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


def known_from_prices(history: History, on_demand: Mapping[Market, int], window: Interval) -> Known:
    """From the prices of a window: a machine is held while the price is at or below on-demand, and lost above it.

    Holes of the recording are left out: nobody knows what a machine would have seen there.
    """
    pieces = history.usable(window)
    sums = {
        market: _cell_of_prices(steps, on_demand[market], pieces, window.end_s)
        for market, steps in history.steps.items()
    }
    return Known(window.end_s, sums)


def _cell_of_prices(steps: Steps, on_demand: int, pieces: Sequence[Interval], until_s: int) -> Cell:
    below = steps.prices <= on_demand
    ends = np.append(steps.times[1:], NEVER_S)
    crossed = np.append(False, below[:-1] & ~below[1:])
    node_h = lost_machines = 0.0
    for piece in pieces:
        since, until = (
            _weight(np.clip(at, piece.start_s, piece.end_s), until_s) for at in (steps.times, ends)
        )
        # A count fades from the hour it was made in, so a price that stays for weeks is no count of its first day.
        node_h += float((until - since) @ below) * HALF_LIFE_H / math.log(2)
        inside = (steps.times > piece.start_s) & (steps.times < piece.end_s)
        lost_machines += float(_weight(steps.times[inside], until_s) @ crossed[inside])
    return Cell(node_h, lost_machines, lost_machines)


def _weight(at_s: Ints, until_s: int) -> npt.NDArray[np.float64]:
    """The weight of a count of these instants as of `until_s`."""
    weight: npt.NDArray[np.float64] = 0.5 ** ((until_s - at_s) / HOUR_S / HALF_LIFE_H)
    return weight
