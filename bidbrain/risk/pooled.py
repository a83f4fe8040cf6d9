"""The usual loss rate of each pool: Gamma-Poisson, with what its zone, its family and all pools saw as prior. Pure.

Losses over node hours are Poisson with a rate that has a Gamma prior. A pool's prior mean is its published band, times
what all pools, then its region (where there are several), its zone and its family saw against that (each shrunk to 1
by STRENGTH losses). The estimate for a pool without observations comes from its neighbours; for a pool with many it is
its own. Old counts fade.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bidbrain.history.prices import Market
from bidbrain.risk.tally import AGES, Cell, Tally

STRENGTH = 1.0  # losses that a prior is worth
FACTOR_STRENGTH = 20.0  # losses that "age and hour change nothing" is worth
HALF_LIFE_H = 24.0 * 14
DAY_H = 24


def family(market: Market) -> str:
    """c5 of c5.xlarge."""
    return market.instance_type.partition(".")[0]


def posterior(prior: float, losses: float, hours: float, strength: float = STRENGTH) -> float:
    """Mean of the Gamma posterior: prior of mean `prior` and shape `strength`, `losses` in `hours` (Poisson)."""
    return (strength + losses) / (strength / prior + hours)


def shrunk(losses: float, expected: float, strength: float = STRENGTH) -> float:
    """Seen against expected losses, a Gamma posterior of mean 1 before anything was seen."""
    return (strength + losses) / (strength + expected)


def fading(at_s: int, now_s: int, half_life_h: float = HALF_LIFE_H) -> float:
    """The weight of a count of that time now."""
    return 0.5 ** (max(0, now_s - at_s) / 3600 / half_life_h)


def batch(correlation: float, nodes: float) -> float:
    """Losses per event where `nodes` are held: 1 if nodes go alone, all if they go together."""
    return 1.0 + correlation * max(0.0, nodes - 1.0)


@dataclass(frozen=True)
class Factors:
    """How age since launch and hour of the day change a rate; around 1."""

    by_age: tuple[float, ...] = (1.0,) * AGES
    by_hour: tuple[float, ...] = (1.0,) * DAY_H


@dataclass(frozen=True)
class Rates:
    """Losses per node hour of each pool in its usual state; the rest as for all pools.

    correlation: of the nodes beside a lost one, the share that goes with it.
    """

    per_node_h: Mapping[Market, float]
    default: Callable[[Market], float]
    correlation: float
    factors: Factors = field(default_factory=Factors)

    def rate(self, market: Market) -> float:
        """Losses per node hour; a pool without observations has its neighbours' prior."""
        found = self.per_node_h.get(market)
        return self.default(market) if found is None else found


def sums_of(tally: Tally, now_s: int) -> dict[Market, Cell]:
    """All hours of each pool, faded as of now, without their split by age."""
    found: dict[Market, Cell] = {}
    for (market, hour_s), cell in tally.cells.items():
        if (own := found.get(market)) is None:
            own = found[market] = Cell()
        weight = fading(hour_s, now_s)
        own.node_h += weight * cell.node_h
        own.lost += weight * cell.lost
        own.events += weight * cell.events
        own.extra += weight * cell.extra
        own.beside += weight * cell.beside
        own.granted += weight * cell.granted
        own.refused += weight * cell.refused
    return found


def pooled_rates(
    sums: Mapping[Market, Cell], band_rate: Callable[[Market], float], factors: Factors | None = None
) -> Rates:
    """The usual rates from faded sums and bands."""
    correlation = shared_correlation(sums.values())
    lost = sum(cell.lost for cell in sums.values())
    events = sum(cell.events for cell in sums.values())
    # Nodes that go together are one piece of evidence: counts are divided by the mean size of an event.
    size = max(1.0, lost / events) if events else 1.0
    seen = {
        market: (cell.lost / size, cell.node_h / size, band_rate(market)) for market, cell in sums.items()
    }
    overall = shrunk(sum(each[0] for each in seen.values()), sum(h * b for _, h, b in seen.values()))
    regions: dict[str, float] = {}
    if len({market.region for market in seen}) > 1:  # one region is what all pools saw
        regions = _level(seen, lambda market: market.region, lambda _: overall)

    def regional(market: Market) -> float:
        return overall * regions.get(market.region, 1.0)

    zones = _level(seen, lambda market: market.zone, regional)
    families = _level(seen, family, lambda market: regional(market) * zones.get(market.zone, 1.0))

    def prior(market: Market) -> float:
        return (
            band_rate(market)
            * regional(market)
            * zones.get(market.zone, 1.0)
            * families.get(family(market), 1.0)
        )

    rates = {market: posterior(prior(market), each[0], each[1]) for market, each in seen.items()}
    return Rates(rates, prior, correlation, factors or Factors())


def _level(
    seen: Mapping[Market, tuple[float, float, float]],
    key: Callable[[Market], str],
    above: Callable[[Market], float],
) -> dict[str, float]:
    """One level of the hierarchy: losses of each group against what the levels above expect of it."""
    losses: dict[str, float] = defaultdict(float)
    expected: dict[str, float] = defaultdict(float)
    for market, (lost, hours, band) in seen.items():
        losses[key(market)] += lost
        expected[key(market)] += above(market) * band * hours
    return {name: shrunk(losses[name], expected[name]) for name in losses}


def shared_correlation(cells: Iterable[Cell]) -> float:
    """Of the nodes beside a lost one, the share lost with it; 1/4 as of 4 nodes before anything was seen."""
    extra, beside = 1.0, 4.0
    for cell in cells:
        extra += cell.extra
        beside += cell.beside
    return min(1.0, extra / beside)


def factors_of(tally: Tally, rates: Rates, now_s: int) -> Factors:
    """Seen against expected losses by age and by hour of the day (UTC), over all pools, shrunk to 1."""
    ages = [[0.0, 0.0] for _ in range(AGES)]
    hours = [[0.0, 0.0] for _ in range(DAY_H)]
    for (market, hour_s), cell in tally.cells.items():
        weight, rate = fading(hour_s, now_s), rates.rate(market)
        hours[hour_s // 3600 % DAY_H][0] += weight * cell.lost
        hours[hour_s // 3600 % DAY_H][1] += weight * cell.node_h * rate
        for pair, (node_h, lost) in zip(ages, cell.by_age, strict=True):
            pair[0] += weight * lost
            pair[1] += weight * node_h * rate
    size = max(1.0, batch_size(tally))

    def each(pairs: list[list[float]]) -> tuple[float, ...]:
        return tuple(shrunk(seen / size, expected / size, FACTOR_STRENGTH) for seen, expected in pairs)

    return Factors(each(ages), each(hours))


def batch_size(tally: Tally) -> float:
    """Losses per event over all pools; 1 without any."""
    lost = math.fsum(cell.lost for cell in tally.cells.values())
    events = math.fsum(cell.events for cell in tally.cells.values())
    return lost / events if events else 1.0
