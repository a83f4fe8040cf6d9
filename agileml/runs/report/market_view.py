"""The market of a run: prices, bids, dollars and what BidBrain measured. Folded from its events, of bounded size."""

from __future__ import annotations

from collections import Counter
from typing import Any

from agileml.events.market import (
    AllocationEnded,
    Billed,
    EstimatesChanged,
    InstancesBought,
    MarketOpened,
    PricesChanged,
)
from agileml.events.schema import RunEvent
from agileml.runs.report.series import Series

MOST_MARKETS = 40
MOST_CURVES = 10  # markets whose prices are drawn
MOST_PRICES = 150
MOST_BIDS = 300
HOUR_S = 3600.0
Bid = tuple[str, float, float | None, float, str]


class MarketView:
    """Takes events; `as_json` has the parts of the page about a market."""

    def __init__(self) -> None:
        self._opened: MarketOpened | None = None
        self._now: dict[str, float] = {}
        self._prices: dict[str, Series] = {}
        self._bought: Counter[str] = Counter()
        self._paid: dict[str, tuple[float, float]] = {}
        self._bids: dict[int, Bid] = {}  # by allocation: market, from, to, bid, ending
        self._spend = Series()
        self._speeds: dict[str, Series] = {}
        self._costs: dict[str, Series] = {"an eviction": Series(), "a planned change": Series()}

    def add(self, t_s: float, event: RunEvent) -> None:
        """Take the next event."""
        match event:
            case MarketOpened():
                self._opened = event
            case PricesChanged(_, prices):
                self._now |= prices
                for market, price in prices.items():
                    self._prices.setdefault(market, Series(MOST_PRICES)).add(t_s, price)
            case InstancesBought():
                self._buy(t_s, event)
            case AllocationEnded(_, allocation, ending) if allocation in self._bids:
                market, from_s, _, bid, _ = self._bids[allocation]
                self._bids[allocation] = market, from_s, t_s, bid, ending.value
            case Billed(_, usd):
                self.spent(t_s, usd, *self._on_demand_usd(event))
            case EstimatesChanged():
                self._measured(t_s, event)

    def spent(self, t_s: float, *usd: float) -> None:
        """Take the dollars so far, and what the job's size on demand would have cost by then, if it is known."""
        self._spend.add(t_s, *usd)

    def _buy(self, t_s: float, event: InstancesBought) -> None:
        self._bought[event.market] += len(event.instances)
        self._paid[event.market] = event.price_usd_per_h, event.bid_usd_per_h
        if not event.reliable:
            for number in event.allocations:
                self._bids[number] = event.market, t_s, None, event.bid_usd_per_h, ""
        if len(self._bids) > MOST_BIDS:
            self._bids = dict(list(self._bids.items())[-MOST_BIDS:])

    def _on_demand_usd(self, event: Billed) -> tuple[float, ...]:
        if self._opened is None:
            return ()
        hours = (event.market_s - self._opened.market_s) / HOUR_S
        return (hours * self._opened.on_demand_usd_per_h,)

    def _measured(self, t_s: float, event: EstimatesChanged) -> None:
        """nu of each type as a share of its nominal vCPUs, phi, lambda and sigma."""
        nominal = self._opened.nominal_vcpus if self._opened is not None else {}
        speeds = {
            f"ν {kind} / {nominal[kind]}": nu / nominal[kind]
            for kind, nu in event.nu.items()
            if kind in nominal
        }
        for name, value in (speeds | {"φ": event.phi}).items():
            if value is not None:
                self._speeds.setdefault(name, Series()).add(t_s, value)
        for series, cost_s in zip(self._costs.values(), (event.lambda_s, event.sigma_s), strict=True):
            if cost_s is not None:
                series.add(t_s, cost_s)

    def time_of(self, market_s: int) -> str:
        """Market time since the market opened, as h:mm:ss."""
        minutes, seconds = divmod(max(0, market_s - (self._opened.market_s if self._opened else 0)), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"

    def as_json(self) -> dict[str, Any]:
        """`market`: (market, price per instance hour, instances bought, price and bid of the last purchase), the ones
        that were bought from first, then the cheapest."""
        markets = sorted(
            {*self._now, *self._bought},
            key=lambda each: (-self._bought[each], self._now.get(each, 0.0), each),
        )
        nothing = (None, None)
        drawn = [each for each in markets if each in self._prices][:MOST_CURVES]
        return {
            "spend": self._spend.points(),
            "market": [
                (each, self._now.get(each), self._bought[each], *self._paid.get(each, nothing))
                for each in markets[:MOST_MARKETS]
            ],
            "prices": {each: self._prices[each].points() for each in drawn},
            "bids": [bid for bid in self._bids.values() if bid[0] in drawn],
            "speeds": {name: series.points() for name, series in self._speeds.items()},
            "costs": {name: series.points() for name, series in self._costs.items()},
        }
