"""Plots of recorded availability, and of jobs on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bidbrain.accounts.ledger import EntryKind, Ledger
from bidbrain.history.availability import Trace
from bidbrain.money import HOUR_S
from bidbrain.report.markets import spans_of, stacked
from bidbrain.report.style import KIND_COLOURS, as_written, labels, new_figure, save
from bidbrain.setting import ON_DEMAND_ZONE


def plot_pools(pools: Sequence[Trace], path: Path) -> Path:
    """Live nodes over time, a panel per pool."""
    figure, axes = new_figure(10.5, 0.8 + 1.7 * len(pools), len(pools), 1)
    for axis, pool in zip(axes, pools, strict=True):
        hours = np.arange(len(pool.counts) + 1) * pool.tick_s / HOUR_S
        axis.fill_between(
            hours, np.append(pool.counts, pool.counts[-1]), step="post", color="#2f6fb3", alpha=0.6, lw=0
        )
        share = float((pool.counts == pool.counts.max()).mean())
        axis.set_title(
            f"{as_written(pool.market.zone)}: live nodes (all of them {share:.0%} of the time)",
            fontsize=10,
            loc="left",
        )
        axis.set_xlim(0, hours[-1])
        axis.set_ylim(bottom=0)
    axes[-1].set_xlabel("hours")
    return save(figure, path)


def plot_pool_job(ledgers: Sequence[Ledger], pools: Sequence[Trace], path: Path) -> Path:
    """Nodes held over time for one job of each scheme: spot and on-demand; the line is the capacity of the pools."""
    names = labels(ledger.header.scheme for ledger in ledgers)
    figure, axes = new_figure(10.5, 0.8 + 2.2 * len(ledgers), len(ledgers), 1)
    for axis, ledger in zip(axes, ledgers, strict=True):
        start_s = ledger.header.start_s
        end_s = max(entry.at_s for entry in ledger.entries)
        times, spot, bought = _held(ledger, end_s)
        hours = [(t - start_s) / HOUR_S for t in times]
        axis.fill_between(
            hours, spot, step="post", color=KIND_COLOURS["spot, paid"], alpha=0.8, lw=0, label="spot"
        )
        axis.fill_between(
            hours,
            spot,
            spot + bought,
            step="post",
            color=KIND_COLOURS["on-demand"],
            alpha=0.8,
            lw=0,
            label="on-demand",
        )
        tick = pools[0].tick_s
        grid = list(range(start_s // tick * tick, end_s + tick, tick))
        room = [sum(pool.count_at(t) for pool in pools) for t in grid]
        axis.step(
            [(t - start_s) / HOUR_S for t in grid],
            room,
            where="post",
            color="#9ca3af",
            lw=0.8,
            label="available",
        )
        losses = sorted({e.at_s for e in ledger.entries if e.kind is EntryKind.EVICTION})
        top = 1.1 * max(*spot + bought, *room)
        axis.plot(
            [(t - start_s) / HOUR_S for t in losses],
            [top] * len(losses),
            "v",
            color="#c8432b",
            ms=5,
            label="evictions",
        )
        axis.set_xlim(0, (end_s - start_s) / HOUR_S)
        axis.set_ylim(0, 1.08 * top)
        axis.set_title(f"{names[ledger.header.scheme]}: nodes held", fontsize=10, loc="left")
    axes[0].legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1, 0.5))
    axes[-1].set_xlabel("hours since the job's start")
    return save(figure, path)


def _held(ledger: Ledger, end_s: int) -> tuple[list[int], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Instants at which anything changes, and the vCPUs on spot and on demand from each of them on."""
    spans = [
        (market.zone == ON_DEMAND_ZONE, vcpus, begin, end)
        for market, vcpus, begin, end in spans_of(ledger.entries, end_s)
    ]
    times, (spot, bought) = stacked(spans, (False, True), ledger.header.start_s, end_s)
    return times, spot, bought
