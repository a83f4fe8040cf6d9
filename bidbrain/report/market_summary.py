"""Figures about markets for people: prices over a window, eviction tables as CSV."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bidbrain.files.whole_file import whole_file
from bidbrain.history.prices import History, Market
from bidbrain.instants import DAY_S, Interval
from bidbrain.risk.eviction import MINUTES, EvictionTable


@dataclass(frozen=True)
class MarketSummary:
    """Prices in micro-dollars/h, weighted by time, over the recorded part of a window; NaN where that is none."""

    mean: float
    median: float
    least: float
    most: float
    share_below: float | None  # of the time at or below on-demand
    changes_per_day: float


def summarise_market(
    history: History, market: Market, window: Interval, on_demand: int | None
) -> MarketSummary:
    """Figures of one market; the holes of the recording are left out. NaN where it has no price in the window."""
    steps = history.steps[market]
    pieces = history.usable(window)
    seconds = np.zeros(len(steps.times), np.int64)
    for piece in pieces:
        seconds += steps.seconds_by_step(piece)
    total = int(seconds.sum())
    if total == 0:
        nan = float("nan")
        return MarketSummary(nan, nan, nan, nan, None, nan)
    held = seconds > 0
    order = np.argsort(steps.prices, kind="stable")
    middle = int(np.searchsorted(2 * np.cumsum(seconds[order]), total))
    inside = (steps.times > window.start_s) & (steps.times <= window.end_s)
    below = None if on_demand is None else float(seconds[steps.prices <= on_demand].sum() / total)
    return MarketSummary(
        float((steps.prices * seconds).sum() / total),
        float(steps.prices[order][middle]),
        float(steps.prices[held].min()),
        float(steps.prices[held].max()),
        below,
        float(inside.sum() * DAY_S / total),
    )


def write_evictions(table: EvictionTable, path: Path) -> int:
    """market, delta, start instants, beta within the hour, median and mean; returns the number of rows."""
    rows = 0
    with whole_file(path) as partial, partial.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(
            ("market", "bid_delta_usd", "start_instants", "beta", "median_to_eviction_s", "mean_held_s")
        )
        for m, market in enumerate(table.markets):
            for d, delta in enumerate(table.deltas):
                beta = table.beta[m, d, MINUTES]
                median = int(table.median_s[m, d, MINUTES]) if beta > 0 else ""
                held = round(table.mean_held_s[m, d, MINUTES], 3)
                writer.writerow((market, delta / 1e6, table.starts[m], round(beta, 9), median, held))
                rows += 1
    return rows
