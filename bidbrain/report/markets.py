"""Plots of prices, and of one job drawn in time from its ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import matplotlib.dates as dates
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from bidbrain.accounts.ledger import ENDINGS, Entry, EntryKind, Ledger
from bidbrain.history.prices import History, Market, Steps
from bidbrain.instants import DAY_S, Interval, show_instant
from bidbrain.report.style import MARKET_COLOURS, as_written, label, new_figure, plain_ticks, save
from bidbrain.setting import ON_DEMAND_ZONE

Colour = str | tuple[float, ...]
Kind = TypeVar("Kind")  # of a span: a market, say
MOST_PANELS = 48  # of one image: of a whole region's markets it would fill the memory


def _when(seconds: float) -> float:
    """Days since 1970, as matplotlib counts dates."""
    return seconds / DAY_S


def _stairs(steps: Steps, window: Interval) -> tuple[list[float], list[float]]:
    """The steps inside a window, from its beginning to its end."""
    first, last = max(0, steps.index_at(window.start_s)), steps.index_at(window.end_s)
    times = np.maximum(steps.times[first : last + 1], window.start_s).tolist()
    prices = (steps.prices[first : last + 1] / 1e6).tolist()
    if not times:
        return [], []
    return [_when(t) for t in [*times, window.end_s]], [*prices, prices[-1]]


def _date_axis(axis: Axes) -> None:
    locator = dates.AutoDateLocator(minticks=3, maxticks=7)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def drawn(history: History) -> tuple[Market, ...]:
    """The markets that `plot_prices` has a panel for."""
    return history.markets[:MOST_PANELS]


def drawn_of(history: History) -> str:
    """How many of the markets are drawn, where that is not all of them; empty: all."""
    count, all_of_them = len(drawn(history)), len(history.markets)
    return f"the first {count} of {all_of_them} markets" if count < all_of_them else ""


def plot_prices(
    history: History,
    on_demand: Mapping[str, int],
    window: Interval,
    path: Path,
    shade: Sequence[tuple[str, Interval]] = (),
) -> Path:
    """Price over time against on-demand, a panel per market; holes hatched, `shade`d windows named above.

    on_demand: {type: micro-dollars/h}; types without one have no such line. Of many markets not all are `drawn`.
    """
    markets = drawn(history)
    columns = 1 if len(markets) == 1 else 2 if len(markets) <= 8 else 3
    rows = -(-len(markets) // columns)
    figure, axes = new_figure(max(9.0, 5.2 * columns), 1.0 + 2.0 * rows, rows, columns)
    for axis in axes[len(markets) :]:
        axis.set_visible(False)
    for axis, market in zip(axes, markets, strict=False):
        steps = history.steps[market]
        times, prices = _stairs(steps, window)
        axis.step(times, prices, where="post", color="#2f6fb3", linewidth=0.7)
        price = on_demand.get(market.instance_type)
        if price is not None:
            axis.axhline(price / 1e6, color="#c8432b", linewidth=1, linestyle="--", label="on-demand")
        if prices and max(prices) > 8 * np.median(prices):
            axis.set_yscale("log")
            plain_ticks(axis)
        for hole in history.holes:
            if hole.overlap(window).seconds:
                axis.axvspan(_when(hole.start_s), _when(hole.end_s), color="#9ca3af", alpha=0.35, hatch="///")
        for number, (_, span) in enumerate(shade):
            part = span.overlap(window)
            axis.axvspan(
                _when(part.start_s),
                _when(part.end_s),
                color=("#fde68a", "#bfdbfe")[number % 2],
                alpha=0.3,
                lw=0,
            )
        axis.set_xlim(_when(window.start_s), _when(window.end_s))
        axis.set_title(as_written(f"{market}  ($/h)"), fontsize=9.5, loc="left")
        _date_axis(axis)
    handles, names = axes[0].get_legend_handles_labels()
    for number, (name, _) in enumerate(shade):
        handles.append(Patch(color=("#fde68a", "#bfdbfe")[number % 2], alpha=0.5))
        names.append(name)
    if handles:
        figure.legend(handles, names, loc="outside upper right", ncols=len(names), frameon=False, fontsize=9)
    return save(figure, path)


def plot_job(ledger: Ledger, history: History, path: Path) -> Path:
    """One job in time: vCPUs by market with the evictions, the prices it saw, the work done.

    Peaks of the first panel are machines that boot inside the last minutes of those they replace.
    """
    entries, header = ledger.entries, ledger.header
    window = Interval(header.start_s, max(entry.at_s for entry in entries))
    evictions = [entry.at_s for entry in entries if entry.kind is EntryKind.EVICTION]
    spans = spans_of(entries, window.end_s)
    markets = sorted({market for market, *_ in spans}, key=lambda m: (m.zone != ON_DEMAND_ZONE, m))
    spot = [market for market in markets if market.zone != ON_DEMAND_ZONE]
    colours = {market: MARKET_COLOURS[i % len(MARKET_COLOURS)] for i, market in enumerate(spot)}
    figure, axes = new_figure(10.5, 8, 3, 1)
    times, heights = stacked(spans, markets, window.start_s, window.end_s)
    most = _draw_vcpus(axes[0], times, dict(zip(markets, heights, strict=True)), colours, evictions)
    # Each job has an image of its own, which knows no other: of two classes of one name it must say which.
    name = header.scheme if ":" in header.scheme else label(header.scheme)
    axes[0].set_title(
        f"{name}, {header.job_hours:g} h of work from {show_instant(header.start_s)}: vCPUs"
        + (" (peaks: replacements boot inside the old hour)" if most > header.cap_vcpus + 12 else ""),
        fontsize=11, loc="left",
    )  # fmt: skip
    _draw_prices(axes[1], ledger, history, window, colours)
    _draw_work(axes[2], entries, window.start_s, evictions)
    for axis in axes:
        axis.set_xlim(_when(window.start_s), _when(window.end_s))
        _date_axis(axis)
    return save(figure, path)


def _draw_vcpus(
    axis: Axes,
    times: Sequence[int],
    heights: Mapping[Market, npt.NDArray[np.float64]],
    colours: Mapping[Market, Colour],
    evictions: Sequence[int],
) -> float:
    """Stack the vCPUs of the markets, with the evictions above; returns the most vCPUs held."""
    at, base = [_when(t) for t in times], np.zeros(len(times))
    for market, height in heights.items():
        colour = colours.get(market, "#6b7280")
        what: dict[str, Any] = {"color": colour, "alpha": 0.85, "lw": 0, "label": as_written(market)}
        axis.fill_between(at, base, base + height, step="post", **what)
        base = base + height
    top = float(base.max()) * 1.06 if len(base) else 1.0
    axis.plot(
        [_when(t) for t in evictions], [top] * len(evictions), "v", color="#c8432b", ms=6,
        label=f"eviction ({len(evictions)})",
    )  # fmt: skip
    axis.set_ylim(0, top * 1.06)
    axis.legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1, 0.5))
    return float(base.max())


def _draw_prices(
    axis: Axes, ledger: Ledger, history: History, window: Interval, colours: Mapping[Market, Colour]
) -> None:
    """Prices of the spot markets that the job used, in cents per vCPU hour; a dot at each grant."""
    for market, colour in colours.items():
        at, dollars = _stairs(history.steps[market], window)
        vcpus = ledger.header.types[market.instance_type][1]
        axis.step(at, [100 * d / vcpus for d in dollars], where="post", color=colour, lw=1)
    for grant in ledger.entries:
        if grant.kind is EntryKind.GRANT and grant.market is not None and grant.price is not None:
            if grant.market not in colours:
                continue
            vcpus = ledger.header.types[grant.market.instance_type][1]
            look: dict[str, Any] = {"ms": 4, "color": colours[grant.market], "mec": "white", "mew": 0.6}
            axis.plot([_when(grant.at_s)], [grant.price / 1e4 / vcpus], "o", **look)
    axis.ticklabel_format(axis="y", useOffset=False)
    axis.margins(y=0.15)
    axis.set_title("spot price, cents per vCPU hour (dots: grants)", fontsize=11, loc="left")


def _draw_work(axis: Axes, entries: Sequence[Entry], start_s: int, evictions: Sequence[int]) -> None:
    """The share of the work that was done, with a line at each eviction."""
    done = [(start_s, 0), *((e.at_s, e.done_vcpu_s or 0) for e in entries if e.kind is EntryKind.WORK)]
    total = max(amount for _, amount in done) or 1
    shares = [100 * amount / total for _, amount in done]
    axis.plot([_when(t) for t, _ in done], shares, color="#374151", lw=1.5)
    for t in evictions:
        axis.axvline(_when(t), color="#c8432b", lw=0.6, alpha=0.5)
    axis.set_ylim(0, 102)
    axis.set_title("work done, %", fontsize=11, loc="left")


def spans_of(entries: Sequence[Entry], end_s: int) -> list[tuple[Market, int, int, int]]:
    """(market, vCPUs, from, to) of every allocation."""
    ends = {entry.allocation: entry.at_s for entry in entries if entry.kind in ENDINGS}
    return [
        (grant.market, grant.vcpus, grant.at_s, ends.get(grant.allocation, end_s))
        for grant in entries
        if grant.kind is EntryKind.GRANT and grant.market is not None and grant.vcpus is not None
    ]


def stacked(
    spans: Sequence[tuple[Kind, int, int, int]], kinds: Sequence[Kind], start_s: int, end_s: int
) -> tuple[list[int], list[npt.NDArray[np.float64]]]:
    """Instants at which anything changes, and the vCPUs of each kind of span from each of them on."""
    times = sorted({start_s, end_s, *(s for _, _, s, _ in spans), *(e for *_, e in spans)})
    at = np.array(times)
    heights = []
    for kind in kinds:
        height = np.zeros(len(times))
        for own, vcpus, begin, end in spans:
            if own == kind:
                height += np.where((at >= begin) & (at < end), vcpus, 0)
        heights.append(height)
    return times, heights
