"""The market's side of a simulation: which requests it grants, and which allocations it evicts.

`PriceExchange` is the bidding era: it grants at or below the bid, and evicts at the first price above it.
`PoolExchange` is today's market: a constant price, and capacity that comes and goes (recorded per pool).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bidbrain.accounts.account import Allocation
from bidbrain.history.availability import Trace
from bidbrain.history.prices import NEVER_S, Market
from bidbrain.instants import show_instant
from bidbrain.policy.answer import PolicyError
from bidbrain.policy.base import Offer
from bidbrain.risk.survival import RECENT_S
from bidbrain.setting import Listing, Setting


class SpotExchange(Protocol):
    """The market of one simulated job."""

    def offers(self, now_s: int) -> tuple[Offer, ...]:
        """Markets with a price now."""
        ...

    def price(self, market: Market, now_s: int) -> int:
        """Micro-dollars per machine hour. Raises PolicyError for a market that has no price yet."""
        ...

    def grants(self, request: Allocation, held: Sequence[Allocation], now_s: int) -> bool:
        """Whether a request that is due now is granted, beside the allocations that are held."""
        ...

    def taken_back(self, held: Sequence[Allocation], now_s: int) -> list[Allocation]:
        """The held allocations that are evicted now."""
        ...

    def next_eviction_s(self, held: Sequence[Allocation], now_s: int) -> int:
        """The first instant after now at which held allocations may be evicted."""
        ...

    def next_change_s(self, now_s: int) -> int:
        """The next change of any price or capacity."""
        ...


def exchange_of(setting: Setting) -> SpotExchange:
    """The exchange of a setting: of its pools if it has any, else of its prices."""
    return PoolExchange(setting.listings, setting.pools) if setting.pools else PriceExchange(setting)


class PriceExchange:
    """Decides by recorded prices."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._steps = setting.history.steps
        self._evictions_s: dict[tuple[Market, int, int], int] = {}

    def offers(self, now_s: int) -> tuple[Offer, ...]:
        found = []
        for listing in self._setting.listings:
            steps = self._steps[listing.market]
            price, high = steps.price_at(now_s), steps.highest(now_s - RECENT_S, now_s)
            if price is not None and high is not None:
                what = (listing.market, price, high, listing.on_demand, listing.vcpus)
                found.append(Offer(*what, float(listing.vcpus)))
        return tuple(found)

    def price(self, market: Market, now_s: int) -> int:
        price = self._steps[market].price_at(now_s)
        if price is None:
            at = show_instant(now_s)
            raise PolicyError(
                f"the policy requests {market}, which has no price yet at {at}, expected one of the offers"
            )
        return price

    def grants(self, request: Allocation, held: Sequence[Allocation], now_s: int) -> bool:
        return self.price(request.market, now_s) <= request.bid

    def _eviction_s(self, allocation: Allocation) -> int:
        key = (allocation.market, allocation.grant_s, allocation.bid)
        if key not in self._evictions_s:
            self._evictions_s[key] = self._steps[key[0]].eviction_s(*key[1:])
        return self._evictions_s[key]

    def taken_back(self, held: Sequence[Allocation], now_s: int) -> list[Allocation]:
        return [allocation for allocation in held if self._eviction_s(allocation) == now_s]

    def next_eviction_s(self, held: Sequence[Allocation], now_s: int) -> int:
        return min((self._eviction_s(allocation) for allocation in held), default=NEVER_S)

    def next_change_s(self, now_s: int) -> int:
        return min(self._steps[market].next_change_s(now_s) for market in self._setting.markets)


class PoolExchange:
    """Decides by recorded capacity: grants a request as a whole if the pool has room, evicts the oldest first.

    (Evicting the oldest first costs more: the youngest would often still be in their free first hour.)
    """

    def __init__(self, listings: Sequence[Listing], pools: Sequence[Trace]) -> None:
        self._listings = {listing.market: listing for listing in listings}
        self._pools = {pool.market: pool for pool in pools}

    def offers(self, now_s: int) -> tuple[Offer, ...]:
        return tuple(
            Offer(
                market, self.price(market, now_s), self.price(market, now_s), each.on_demand, each.vcpus, 1.0
            )
            for market, each in self._listings.items()
        )

    def price(self, market: Market, now_s: int) -> int:
        return self._pools[market].price

    def grants(self, request: Allocation, held: Sequence[Allocation], now_s: int) -> bool:
        used = sum(allocation.vcpus for allocation in held if allocation.market == request.market)
        return used + request.vcpus <= self._pools[request.market].count_at(now_s)

    def taken_back(self, held: Sequence[Allocation], now_s: int) -> list[Allocation]:
        own: dict[Market, list[Allocation]] = {}
        for allocation in held:
            own.setdefault(allocation.market, []).append(allocation)
        gone: list[Allocation] = []
        for market, pool in self._pools.items():
            if market not in own:
                continue
            over = sum(allocation.vcpus for allocation in own[market]) - pool.count_at(now_s)
            for allocation in own[market]:
                if over <= 0:
                    break
                gone.append(allocation)
                over -= allocation.vcpus
        return gone

    def next_eviction_s(self, held: Sequence[Allocation], now_s: int) -> int:
        markets = {allocation.market for allocation in held}
        return min((self._pools[market].next_change_s(now_s) for market in markets), default=NEVER_S)

    def next_change_s(self, now_s: int) -> int:
        return min(pool.next_change_s(now_s) for pool in self._pools.values())
