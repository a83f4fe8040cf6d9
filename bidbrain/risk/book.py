"""The risk of every pool, as policies use it: the usual rate, learned and kept, times the moment's regime. Pure.

The simulator and the live service give a `RiskBook` the same events in the same order, so a policy sees the same odds
in both. Asking changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bidbrain.history.prices import Market
from bidbrain.money import HOUR_S
from bidbrain.risk.bands import Bands, packaged_bands
from bidbrain.risk.pooled import (
    DAY_H,
    Factors,
    Rates,
    batch,
    factors_of,
    fading,
    pooled_rates,
    sums_of,
)
from bidbrain.risk.regime import Chances, Regime, answered, lost
from bidbrain.risk.tally import Cell, Tally, Watch, age_of


@dataclass(frozen=True)
class Hazard:
    """The odds of one pool now. per_node_h: losses per node hour. regime: the moment's multiple of the usual rate."""

    per_node_h: float
    correlation: float
    regime: float

    def events_per_h(self, nodes: float) -> float:
        """Events per hour in which at least one of `nodes` is lost."""
        return nodes * self.per_node_h / batch(self.correlation, nodes)


@dataclass(frozen=True)
class Known:
    """Statistics before a job begins: sums per pool, faded as of `at_s`; regimes where the last hours are known."""

    at_s: int = 0
    sums: Mapping[Market, Cell] = field(default_factory=dict)
    bands: Bands | None = None
    factors: Factors | None = None
    regimes: Mapping[Market, Regime] = field(default_factory=dict)

    @staticmethod
    def of_tally(tally: Tally, now_s: int, bands: Bands | None = None) -> Known:
        """The statistics of kept tallies, as of now."""
        sums = sums_of(tally, now_s)
        rates = pooled_rates(sums, (bands or packaged_bands()).rate)
        return Known(now_s, sums, bands, factors_of(tally, rates, now_s))


class RiskBook:
    """The odds of all pools, from what was known and what happened to this job's own machines since."""

    def __init__(self, known: Known | None = None) -> None:
        self._known = known or Known()
        self._bands = self._known.bands or packaged_bands()
        self.watch = Watch()
        self._regimes = {
            market: Regime(each.at_s, each.chances) for market, each in self._known.regimes.items()
        }
        self._scarce: set[Market] = set()
        self._asked: dict[Market, tuple[tuple[int, int, Chances], float]] = {}
        self._rates: Rates | None = None
        self._rates_hour = -1

    def know(self, known: Known) -> None:
        """Replace what other jobs saw; what this one saw stays."""
        self._known, self._rates = known, None
        self._bands = known.bands or packaged_bands()

    # -- events, in order of time -----------------------------------------------------------------------------------

    def granted(self, at_s: int, number: int, market: Market, machines: int) -> None:
        """Machines of allocation `number` were granted."""
        regime = self._advanced(market, at_s)
        regime.chances = answered(regime.chances, refused=False)
        self._scarce.discard(market)
        self.watch.granted(at_s, number, market, machines)

    def refused(self, at_s: int, market: Market) -> None:
        """A pool had no room. Refusals until it has some again are one piece of evidence: it is scarce."""
        self.watch.refused(at_s, market)
        if market not in self._scarce:
            self._scarce.add(market)
            regime = self._advanced(market, at_s)
            regime.chances = answered(regime.chances, refused=True)

    def hinted(self, at_s: int, market: Market) -> None:
        """The cloud said that a machine of the pool is at risk."""
        regime = self._advanced(market, at_s)
        regime.chances = answered(regime.chances, refused=True)

    def ended(self, at_s: int, number: int, *, evicted: bool) -> None:
        """An allocation ended; `number` may be one that the book was never told of."""
        market = self.watch.market_of(number)
        if market is None:
            return
        regime = self._regimes.get(market)
        if evicted and regime is not None and regime.at_s == at_s:
            # No time has passed since the pool's last event, and rates are due anew after this one: none are needed.
            if self._rates_are_due(at_s):
                self.watch.count(at_s)
            regime.advance(at_s, 0.0)
        else:
            regime = self._advanced(market, at_s)
        if self.watch.ended(at_s, number, evicted=evicted):
            regime.chances = lost(regime.chances)
        if evicted:
            self._rates = None

    # -- questions ----------------------------------------------------------------------------------------------------

    def hazard(self, market: Market, now_s: int, age_h: float = 0.0) -> Hazard:
        """The odds of a machine of this age in a pool now."""
        rates = self._rates_at(now_s)
        usual = rates.rate(market)
        factors = rates.factors
        multiple = self._multiple(market, now_s, usual)
        shape = factors.by_age[age_of(age_h)] * factors.by_hour[now_s // HOUR_S % DAY_H]
        return Hazard(usual * shape * multiple, rates.correlation, multiple)

    def _multiple(self, market: Market, now_s: int, usual: float) -> float:
        """The regime of a pool; asked for new and held machines at one instant."""
        regime = self._regimes.get(market)
        if regime is None:
            return 1.0
        key = (now_s, regime.at_s, regime.chances)
        known = self._asked.get(market)
        if known is None or known[0] != key:
            known = key, regime.multiplier(now_s, self._events_per_h(market, usual))
            self._asked[market] = known
        return known[1]

    def usual(self, market: Market, now_s: int) -> float:
        """Losses per node hour of a pool in its usual state."""
        return self._rates_at(now_s).rate(market)

    def _events_per_h(self, market: Market, usual: float) -> float:
        nodes = self.watch.machines(market)
        return nodes * usual / batch(self._correlation, nodes)

    @property
    def _correlation(self) -> float:
        return self._rates.correlation if self._rates is not None else 0.0

    def _advanced(self, market: Market, at_s: int) -> Regime:
        usual = self._rates_at(at_s).rate(market)
        regime = self._regimes.setdefault(market, Regime(at_s))
        regime.advance(at_s, self._events_per_h(market, usual))
        return regime

    def _rates_are_due(self, now_s: int) -> bool:
        return self._rates is None or now_s // HOUR_S != self._rates_hour

    def _rates_at(self, now_s: int) -> Rates:
        """The usual rates, computed once an hour and after an eviction."""
        if self._rates is None or self._rates_are_due(now_s):
            self.watch.count(now_s)
            sums: dict[Market, Cell] = {}
            fade = fading(self._known.at_s, now_s)
            for market, cell in self._known.sums.items():
                sums.setdefault(market, Cell()).add(cell, fade)
            for market, cell in sums_of(self.watch.tally, now_s).items():
                sums.setdefault(market, Cell()).add(cell)
            self._rates = pooled_rates(sums, self._bands.rate, self._known.factors)
            self._rates_hour = now_s // HOUR_S
        return self._rates
