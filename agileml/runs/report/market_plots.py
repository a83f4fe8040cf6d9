"""The pictures of a market in a run's report: prices and bids, spend, and what BidBrain measured. From events alone."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from agileml.runs.summary import Event, of_kind

GRID, SPEND, ON_DEMAND = "#dfe4ea", "#c8432b", "#6b7280"
ENDINGS = {"evicted": ("X", "#c0392b"), "terminated": ("s", "#616e7c")}
PHI, LAMBDA, SIGMA = "#1f2933", "#c0392b", "#c77700"


def prices_and_bids(axes: Axes, events: Sequence[Event]) -> bool:
    """Every market's price as steps; each purchase as a bar at its bid, from its grant to its end."""
    told = of_kind(events, "prices")
    if not told:
        return False
    end_s = float(events[-1]["t_s"])
    series: dict[str, tuple[list[float], list[float]]] = {}
    for event in told:
        for market, price in event["usd_per_h"].items():
            times, prices = series.setdefault(market, ([], []))
            times.append(event["t_s"])
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
    for grant, ended in _bought(events):
        colour = colours.get(grant["market"], "black")
        until_s = end_s if ended is None else ended["t_s"]
        bid = grant["bid_usd_per_h"]
        axes.hlines(bid, grant["t_s"], until_s, color=colour, linewidth=2.4, alpha=0.55)
        if ended is not None and ended["ending"] in ENDINGS:
            marker, ink = ENDINGS[ended["ending"]]
            axes.scatter([until_s], [bid], marker=marker, color=ink, s=22, zorder=4)
    _style(axes, events)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("$ per machine hour")
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, frameon=False)
    axes.set_title("thin: price, thick: bid, x: evicted", fontsize=8, loc="right", pad=2)
    return True


def _bought(events: Sequence[Event]) -> list[tuple[Event, Event | None]]:
    """Spot purchases with what ended each of their allocations."""
    ends = {event["allocation"]: event for event in of_kind(events, "market_end")}
    return [
        (grant, ends.get(number))
        for grant in of_kind(events, "market_grant")
        for number in grant["allocations"]
    ]


def spend(axes: Axes, events: Sequence[Event]) -> bool:
    """Dollars if everything ended then, beside what the job on on-demand machines would have cost by then."""
    told, opened = of_kind(events, "spend"), of_kind(events, "market_opened")
    if not told or not opened:
        return False
    start_s, hourly_usd = opened[0]["market_s"], opened[0]["on_demand_usd_per_h"]
    times = [event["t_s"] for event in told]
    axes.step(
        times, [event["usd"] for event in told], where="post", color=SPEND, linewidth=1.6, label="this job"
    )
    held = [hourly_usd * (event["market_s"] - start_s) / 3600 for event in told]
    axes.plot(times, held, color=ON_DEMAND, linewidth=1.2, linestyle="--", label="its size on demand")
    _style(axes, events)
    axes.yaxis.set_major_formatter(StrMethodFormatter("${x:g}"))
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    return True


def measured_speed(axes: Axes, events: Sequence[Event]) -> bool:
    """nu of each type as a share of its nominal vCPUs, and phi."""
    told, opened = of_kind(events, "estimates"), of_kind(events, "market_opened")
    if not told or not opened:
        return False
    nominal = opened[0]["nominal_vcpus"]
    for number, kind in enumerate(sorted({kind for event in told for kind in event["nu"]})):
        seen = [(event["t_s"], event["nu"][kind] / nominal[kind]) for event in told if kind in event["nu"]]
        axes.plot(
            *zip(*seen, strict=True), color=f"C{number}", linewidth=1.3, label=f"ν {kind} / {nominal[kind]}"
        )
    phi = [(event["t_s"], event["phi"]) for event in told if event["phi"] is not None]
    if phi:
        axes.plot(*zip(*phi, strict=True), color=PHI, linewidth=1.1, linestyle=":", label="φ")
    _style(axes, events)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    return True


def measured_costs(axes: Axes, events: Sequence[Event]) -> bool:
    """lambda and sigma: market seconds that an eviction, and a planned change, cost."""
    drawn = False
    for name, colour, label in (("lambda_s", LAMBDA, "λ, an eviction"), ("sigma_s", SIGMA, "σ, a change")):
        seen = [(e["t_s"], e[name]) for e in of_kind(events, "estimates") if e[name] is not None]
        if seen:
            axes.plot(*zip(*seen, strict=True), color=colour, linewidth=1.3, label=label)
            drawn = True
    if drawn:
        _style(axes, events)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("market seconds lost")
        axes.legend(fontsize=8, frameon=False)
    return drawn


def _style(axes: Axes, events: Sequence[Event]) -> None:
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    opened = of_kind(events, "market_opened")
    axes.set_xlim(opened[0]["t_s"] if opened else 0.0, float(events[-1]["t_s"]))
    axes.set_xlabel("seconds since the start of the run")


PICTURES = (
    ("Prices and bids", prices_and_bids),
    ("Spend", spend),
    ("Measured: speed", measured_speed),
    ("Measured: what changes cost", measured_costs),
)
