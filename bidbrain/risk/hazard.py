"""Eviction from observed losses, for markets whose price says nothing about it (since 2017).

`PoolHazard`: losses over live node hours are Poisson, their rate has a Gamma prior, and observations fade with a
half-life. It is an eviction model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bidbrain.history.availability import Trace
from bidbrain.history.prices import Market
from bidbrain.money import HOUR_S
from bidbrain.risk.eviction import Outlook, PriceNow

PRIOR_LOSSES = 0.5
PRIOR_NODE_HOURS = 10.0
HALF_LIFE_H = 24.0


def exponential_outlook(rate_per_h: float, minutes: int) -> Outlook:
    """The outlook of a constant hazard over a horizon: probability, median among the evicted, mean held time."""
    horizon_h = minutes / 60
    lost = -math.expm1(-rate_per_h * horizon_h)
    if rate_per_h <= 0.0 or lost <= 0.0:
        return Outlook(0.0, 60.0 * minutes, 60.0 * minutes, 60.0 * minutes)
    median_h = -math.log1p(-lost / 2) / rate_per_h
    held_h = lost / rate_per_h
    return Outlook(lost, median_h * HOUR_S, held_h * HOUR_S, held_h * HOUR_S)


@dataclass
class LossRate:
    """Losses and exposure with a Gamma prior: the posterior mean is (a + losses) / (b + hours)."""

    losses: float = 0.0
    hours: float = 0.0
    events: float = 0.0
    pool_hours: float = 0.0

    def observe(self, nodes: int, hours: float, lost: int, half_life_h: float = HALF_LIFE_H) -> None:
        """`nodes` were live for `hours`, then `lost` of them went at once; older counts fade."""
        fade = 0.5 ** (hours / half_life_h)
        self.losses = self.losses * fade + lost
        self.hours = self.hours * fade + nodes * hours
        self.events = self.events * fade + (lost > 0)
        self.pool_hours = self.pool_hours * fade + (hours if nodes else 0.0)

    @property
    def per_node_hour(self) -> float:
        return (PRIOR_LOSSES + self.losses) / (PRIOR_NODE_HOURS + self.hours)

    @property
    def events_per_hour(self) -> float:
        """Losses of any size per hour with live nodes: a bulk loss stops the job once, not once per node."""
        return (PRIOR_LOSSES + self.events) / (PRIOR_NODE_HOURS + self.pool_hours)


@dataclass
class PoolHazard:
    """Gamma-Poisson hazard per pool."""

    rates: dict[Market, LossRate] = field(default_factory=dict)

    @staticmethod
    def train(pools: Sequence[Trace], until_s: int) -> PoolHazard:
        """Learn from recorded availability before `until_s`: every drop is a loss of so many nodes."""
        hazard = PoolHazard()
        for pool in pools:
            rate = hazard.rates.setdefault(pool.market, LossRate())
            counts = pool.counts[: until_s // pool.tick_s + 1].tolist()
            hours = pool.tick_s / HOUR_S
            for before, after in pairwise(counts):
                rate.observe(before, hours, max(0, before - after))
        return hazard

    def rate(self, market: Market) -> LossRate:
        return self.rates.setdefault(market, LossRate())

    def outlook(self, market: Market, bid_delta: int, now: PriceNow, minutes: int) -> Outlook:
        """An eviction model: the hazard is constant, a bid changes nothing."""
        return exponential_outlook(self.rate(market).per_node_hour, minutes)
