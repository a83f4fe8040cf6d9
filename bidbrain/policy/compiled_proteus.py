"""The thesis' policy for live jobs: the same decisions as `policy.proteus`, with a compiled search.

A thousand markets at nineteen deltas beside two hundred allocations are four million terms of equation 4.3 per
decision: seconds in plain Python, milliseconds compiled. The sums run in the same order, so every float is the same.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt
from numba import njit

from bidbrain.history.prices import Market
from bidbrain.money import HOUR_S
from bidbrain.policy.base import MarketView, Request, show_price
from bidbrain.policy.footprint import (
    allocation_work,
    cost_per_work,
    expected_charge,
    scaling_efficiency,
    useful_time,
    useful_until,
)
from bidbrain.policy.proteus import Proteus
from bidbrain.risk.eviction import EvictionTable, Outlook, PriceNow
from bidbrain.setting import Setting

Floats = npt.NDArray[np.float64]
MINUTES = HOUR_S // 60


class IndexedTable:
    """An eviction table that looks its markets up in a dictionary."""

    def __init__(self, table: EvictionTable) -> None:
        self.table = table
        self.rows = {market: row for row, market in enumerate(table.markets)}
        self._deltas = list(table.deltas)

    def outlook(self, market: Market, bid_delta: int, now: PriceNow, minutes: int) -> Outlook:
        """As `EvictionTable.outlook`."""
        delta = max(0, bisect_right(self._deltas, bid_delta) - 1)
        at = (self.rows[market], delta, minutes)
        held = float(self.table.mean_held_s[at])
        return Outlook(float(self.table.beta[at]), float(self.table.median_s[at]), held, held)


class CompiledProteus(Proteus):
    """`Proteus`, which decides in milliseconds. Its model is the eviction table of the setting."""

    def __init__(self, setting: Setting, start_s: int) -> None:
        self._indexed = IndexedTable(setting.evictions)
        super().__init__(setting, start_s, self._indexed)
        self._first = setting.bidding.first_delta

    def _best_request(self, now_s: int, view: MarketView, size: int) -> tuple[Request | None, str]:
        held = [self._held(holding, view, now_s) for holding in view.holdings]
        now = self.cost(held, view, False)
        offers = [offer for offer in view.offers if offer.price <= offer.on_demand]
        rows = np.array([self._indexed.rows[offer.market] for offer in offers], np.int64)
        reference, engine, table = self._setting.reference, view.job.engine, self._indexed.table
        cost, free = self._setting.reliable.hourly / reference, 1.0
        for a in held:
            cost += expected_charge(a.beta, a.price, a.machines, a.left_h)
            free *= 1.0 - a.beta
        vcpus = sum(a.vcpus for a in held) + size
        best, row, delta = _search(
            now,
            cost,
            free,
            np.array([(a.omega_h, a.machines, a.nu) for a in held], np.float64).reshape(-1, 3),
            np.array([(o.price / reference, size / o.vcpus, o.nu) for o in offers], np.float64).reshape(
                -1, 3
            ),
            table.beta[rows, self._first :, MINUTES],
            table.median_s[rows, self._first :, MINUTES],
            (engine.boot_s + self._setting.bidding.grant_delay_s) / HOUR_S,
            engine.lambda_s / HOUR_S,
            engine.sigma_s / HOUR_S,
            scaling_efficiency(vcpus, view.job.vcpus, view.job.phi),
        )
        if row < 0:
            return None, f"no request lowers E {now:.4g}"
        offer = offers[row]
        bid = offer.price + self._deltas[delta]
        margin = (bid - offer.price) / 1e6
        return Request(offer.market, size, bid), (
            f"{offer.market} at {show_price(offer.price)}, bid +{margin:g}: E {now:.4g} -> {best:.4g}"
        )


@njit(cache=True)
def _search(
    now: float,
    cost: float,
    free: float,
    held: Floats,
    fresh: Floats,
    beta: Floats,
    median_s: Floats,
    boot_h: float,
    lambda_h: float,
    sigma_h: float,
    efficiency: float,
) -> tuple[float, int, int]:
    """(E, offer, delta) of the request of least E below `now`; offer -1 if there is none.

    held: rows (omega, machines, nu). fresh: rows (relative price, machines, nu), with beta and median by delta.
    """
    best, best_row, best_delta = now, -1, 0
    for row in range(len(fresh)):
        price, machines, nu = fresh[row]
        for delta in range(beta.shape[1]):
            evicted = beta[row, delta]
            all_free = free * (1.0 - evicted)
            work = 0.0
            for h in range(len(held)):
                useful = useful_time(held[h, 0], all_free, lambda_h, sigma_h)
                work += allocation_work(held[h, 1], useful, held[h, 2])
            omega = useful_until(evicted, 1.0, median_s[row, delta] / HOUR_S) - boot_h
            work += allocation_work(machines, useful_time(omega, all_free, lambda_h, sigma_h), nu)
            value = cost_per_work(cost + expected_charge(evicted, price, machines, 1.0), efficiency * work)
            if value < best:
                best, best_row, best_delta = value, row, delta
    return best, best_row, best_delta
