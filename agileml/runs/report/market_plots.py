"""The pictures of a market in a run's report: prices and bids, spend, and what BidBrain measured. From events alone."""

from __future__ import annotations

import matplotlib
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from agileml.events.market import (
    AllocationEnded,
    Billed,
    EstimatesChanged,
    InstancesBought,
    MarketOpened,
    PricesChanged,
)
from agileml.events.schema import Log, Logged, events_of, of_type
from agileml.events.terms import AllocationEnding

GRID, SPEND, ON_DEMAND = "#dfe4ea", "#c8432b", "#6b7280"
ENDINGS = {AllocationEnding.EVICTED: ("X", "#c0392b"), AllocationEnding.TERMINATED: ("s", "#616e7c")}
PHI, LAMBDA, SIGMA = "#1f2933", "#c0392b", "#c77700"


def prices_and_bids(axes: Axes, log: Log) -> bool:
    """Every market's price as steps; each purchase as a bar at its bid, from its grant to its end."""
    told = of_type(log, PricesChanged)
    if not told:
        return False
    end_s = log[-1].t_s
    series: dict[str, tuple[list[float], list[float]]] = {}
    for each in told:
        for market, price in each.event.usd_per_h.items():
            times, prices = series.setdefault(market, ([], []))
            times.append(each.t_s)
            prices.append(price)
    colours = dict(zip(sorted(series), matplotlib.colormaps["tab10"].colors * 10, strict=False))  # type: ignore[attr-defined]
    for market in sorted(series):
        times, prices = series[market]
        axes.step(
            [*times, end_s],
            [*prices, prices[-1]],
            where="post",
            color=colours[market],
            linewidth=0.9,
            label=market,
        )
    for grant, ended in _bought(log):
        colour = colours.get(grant.event.market, "black")
        until_s = end_s if ended is None else ended.t_s
        bid = grant.event.bid_usd_per_h
        axes.hlines(bid, grant.t_s, until_s, color=colour, linewidth=2.4, alpha=0.55)
        if ended is not None and ended.event.ending in ENDINGS:
            marker, ink = ENDINGS[ended.event.ending]
            axes.scatter([until_s], [bid], marker=marker, color=ink, s=22, zorder=4)
    _style(axes, log)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("$ per machine hour")
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, frameon=False)
    axes.set_title("thin: price, thick: bid, x: evicted", fontsize=8, loc="right", pad=2)
    return True


def _bought(log: Log) -> list[tuple[Logged[InstancesBought], Logged[AllocationEnded] | None]]:
    """Spot purchases, with the ending of each of their allocations."""
    ends = {ended.event.allocation: ended for ended in of_type(log, AllocationEnded)}
    return [
        (grant, ends.get(number))
        for grant in of_type(log, InstancesBought)
        for number in grant.event.allocations
    ]


def spend(axes: Axes, log: Log) -> bool:
    """Dollars if everything ended then, beside the cost of the job on on-demand machines by then."""
    told, opened = of_type(log, Billed), events_of(log, MarketOpened)
    if not told or not opened:
        return False
    start_s, hourly_usd = opened[0].market_s, opened[0].on_demand_usd_per_h
    times = [each.t_s for each in told]
    axes.step(
        times, [each.event.usd for each in told], where="post", color=SPEND, linewidth=1.6, label="this job"
    )
    held = [hourly_usd * (each.event.market_s - start_s) / 3600 for each in told]
    axes.plot(times, held, color=ON_DEMAND, linewidth=1.2, linestyle="--", label="its size on demand")
    _style(axes, log)
    axes.yaxis.set_major_formatter(StrMethodFormatter("${x:g}"))
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    return True


def measured_speed(axes: Axes, log: Log) -> bool:
    """nu of each type as a share of its nominal vCPUs, and phi."""
    told, opened = of_type(log, EstimatesChanged), events_of(log, MarketOpened)
    if not told or not opened:
        return False
    nominal = opened[0].nominal_vcpus
    for number, kind in enumerate(sorted({kind for each in told for kind in each.event.nu})):
        seen = [(e.t_s, e.event.nu[kind] / nominal[kind]) for e in told if kind in e.event.nu]
        axes.plot(
            *zip(*seen, strict=True), color=f"C{number}", linewidth=1.3, label=f"ν {kind} / {nominal[kind]}"
        )
    phi = [(each.t_s, each.event.phi) for each in told if each.event.phi is not None]
    if phi:
        axes.plot(*zip(*phi, strict=True), color=PHI, linewidth=1.1, linestyle=":", label="φ")
    _style(axes, log)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    return True


def measured_costs(axes: Axes, log: Log) -> bool:
    """lambda and sigma: market seconds that an eviction, and a planned change, cost."""
    told = of_type(log, EstimatesChanged)
    evictions = [(e.t_s, e.event.lambda_s) for e in told if e.event.lambda_s is not None]
    changes = [(e.t_s, e.event.sigma_s) for e in told if e.event.sigma_s is not None]
    drawn = False
    for seen, colour, label in ((evictions, LAMBDA, "λ, an eviction"), (changes, SIGMA, "σ, a change")):
        if seen:
            axes.plot(*zip(*seen, strict=True), color=colour, linewidth=1.3, label=label)
            drawn = True
    if drawn:
        _style(axes, log)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("market seconds lost")
        axes.legend(fontsize=8, frameon=False)
    return drawn


def _style(axes: Axes, log: Log) -> None:
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    opened = of_type(log, MarketOpened)
    axes.set_xlim(opened[0].t_s if opened else 0.0, log[-1].t_s)
    axes.set_xlabel("seconds since the start of the run")


PICTURES = (
    ("Prices and bids", prices_and_bids),
    ("Spend", spend),
    ("Measured: speed", measured_speed),
    ("Measured: what changes cost", measured_costs),
)
