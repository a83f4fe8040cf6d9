"""Survival of one hour given the price now: its level and whether it stands at a recent high.

The renewal policy's table. Six states per market: the tercile of the price within the training window, times
"within 2% of the highest price of the last two hours" (yes, no). A state's counts are shrunk towards those of the whole
market by 30 start instants, so that a rare state has the figures of its market. Exact over all start seconds, as in
`eviction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from bidbrain.history.prices import History, Ints, Market
from bidbrain.instants import Interval
from bidbrain.money import HOUR_S
from bidbrain.risk.eviction import DELTAS_MICRO_USD, Floats, Outlook, PriceNow, delta_index

LEVELS = 3
STATES = 2 * LEVELS
RECENT_S = 2 * HOUR_S
SHRINK = 30.0
NEAR_PERCENT = 98


@dataclass(frozen=True, eq=False)
class SurvivalTable:
    """One hour's outlook by (market, state, delta); a state is 2 x level + near.

    evicted: probability; held_s: mean held time; useful_s: mean held time less `boot_s` at its start (never below 0).
    thresholds[m]: the two terciles of the price (micro-dollars/h): level = how many of them the price exceeds.
    """

    markets: tuple[Market, ...]
    deltas: tuple[int, ...]
    boot_s: int
    thresholds: Ints
    evicted: Floats
    held_s: Floats
    useful_s: Floats

    @staticmethod
    def train(
        history: History,
        markets: Sequence[Market],
        window: Interval,
        boot_s: int,
        deltas: Sequence[int] = DELTAS_MICRO_USD,
    ) -> SurvivalTable:
        """Exact table over every start second of `window`. Without any start: nothing is ever evicted."""
        shape = (len(markets), STATES, len(deltas))
        evicted, held, useful = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        thresholds = np.zeros((len(markets), LEVELS - 1), np.int64)
        pieces = history.usable(window)
        for number, market in enumerate(markets):
            steps = history.steps[market]
            weights = np.zeros(len(steps.times), np.int64)
            for piece in pieces:
                weights += steps.seconds_by_step(piece)
            thresholds[number] = _terciles(steps.prices, weights)
            counts = np.zeros(STATES, np.int64)
            sums = np.zeros((3, STATES, len(deltas)), np.int64)
            for piece in pieces:
                _count_states(
                    *(steps.times, steps.prices, piece.start_s, piece.end_s),
                    *(np.array(deltas, np.int64), thresholds[number], boot_s, counts, sums),
                )
            _shrink(counts, sums, boot_s, evicted[number], held[number], useful[number])
        return SurvivalTable(tuple(markets), tuple(deltas), boot_s, thresholds, evicted, held, useful)

    def state(self, market: Market, now: PriceNow) -> int:
        """2 x level + near for the price now."""
        low, high = self.thresholds[self.markets.index(market)].tolist()
        return price_state(now.price, now.recent_high, low, high)

    def outlook(self, market: Market, bid_delta: int, now: PriceNow, minutes: int) -> Outlook:
        """Only for the horizon of one hour."""
        assert minutes == HOUR_S // 60, "this table knows whole hours only"
        at = (self.markets.index(market), self.state(market, now), delta_index(self.deltas, bid_delta))
        held = float(self.held_s[at])
        return Outlook(float(self.evicted[at]), held, held, float(self.useful_s[at]))


@njit(cache=True)
def price_state(price: int, recent_high: int, low: int, high: int) -> int:
    """2 x (how many terciles the price exceeds) + 1 if it is within 2% of the highest of the last two hours."""
    level = (1 if price > low else 0) + (1 if price > high else 0)
    return 2 * level + (1 if 100 * price >= NEAR_PERCENT * recent_high else 0)


def _terciles(prices: Ints, seconds: Ints) -> Ints:
    """The two terciles of the price, weighted by the time it held; the least price that a third of the time is at."""
    order = np.argsort(prices, kind="stable")
    reached = np.cumsum(seconds[order])
    if reached[-1] == 0:
        return np.full(LEVELS - 1, prices.max(), np.int64)
    wanted = np.array([reached[-1] * part for part in range(1, LEVELS)])
    return prices[order][np.searchsorted(LEVELS * reached, wanted)]


@njit(cache=True)
def _count_states(
    times: Ints,
    prices: Ints,
    start_s: int,
    end_s: int,
    deltas: Ints,
    thresholds: Ints,
    boot_s: int,
    counts: Ints,
    sums: Ints,
) -> None:
    """Add the starts of [start_s, end_s - 1 h] to counts[state] and sums[(evicted, held, useful), state, delta]."""
    n = len(times)
    last_s = end_s - HOUR_S
    first = max(0, int(np.searchsorted(times, start_s, side="right")) - 1)
    for i in range(first, n):
        if times[i] > last_s:
            break
        low = max(times[i], start_s)
        high = last_s if i + 1 == n else min(times[i + 1] - 1, last_s)
        if high < low:
            continue
        level = 2 * ((1 if prices[i] > thresholds[0] else 0) + (1 if prices[i] > thresholds[1] else 0))
        # The price of this step becomes "near the recent high" once the last clearly higher one is two hours gone:
        # step j holds through times[j + 1] - 1, the last second that still sees it is 7200 s later.
        near_from = low
        j = i - 1
        while j >= 0 and times[j + 1] - 1 + RECENT_S >= low:
            if 100 * prices[i] < NEAR_PERCENT * prices[j]:
                near_from = max(near_from, times[j + 1] + RECENT_S)
                break
            j -= 1
        for near in range(2):
            a = near_from if near == 1 else low
            b = high if near == 1 else min(high, near_from - 1)
            if b < a:
                continue
            state = level + near
            counts[state] += b - a + 1
            k = i + 1
            for d in range(len(deltas)):
                bid = prices[i] + deltas[d]
                while k < n and times[k] - b < HOUR_S and prices[k] <= bid:
                    k += 1
                if k == n or times[k] - b >= HOUR_S:
                    for rest in range(d, len(deltas)):
                        sums[1, state, rest] += HOUR_S * (b - a + 1)
                        sums[2, state, rest] += (HOUR_S - boot_s) * (b - a + 1)
                    break
                # Leads run from times[k] - b to times[k] - a; those of an hour and more survive it.
                shortest = times[k] - b
                longest = min(times[k] - a, HOUR_S - 1)
                gone = longest - shortest + 1
                stay = (b - a + 1) - gone
                sums[0, state, d] += gone
                sums[1, state, d] += (shortest + longest) * gone // 2 + HOUR_S * stay
                begin = max(shortest, boot_s + 1)
                if begin <= longest:
                    sums[2, state, d] += (begin + longest - 2 * boot_s) * (longest - begin + 1) // 2
                sums[2, state, d] += (HOUR_S - boot_s) * stay


@njit(cache=True)
def _shrink(counts: Ints, sums: Ints, boot_s: int, evicted: Floats, held: Floats, useful: Floats) -> None:
    """Each state's mean, shrunk by 30 instants of the market's overall mean."""
    total = counts.sum()
    for d in range(sums.shape[2]):
        for state in range(STATES):
            if total == 0:
                held[state, d], useful[state, d] = HOUR_S, HOUR_S - boot_s
                continue
            weight = counts[state] + SHRINK
            evicted[state, d] = (sums[0, state, d] + SHRINK * sums[0, :, d].sum() / total) / weight
            held[state, d] = (sums[1, state, d] + SHRINK * sums[1, :, d].sum() / total) / weight
            useful[state, d] = (sums[2, state, d] + SHRINK * sums[2, :, d].sum() / total) / weight
