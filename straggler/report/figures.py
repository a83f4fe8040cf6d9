"""Figures of simulated schemes: one for patterns, one for variants of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from straggler.config import StragglerConfig
from straggler.report.summary import Summary

COLOURS = {
    "bsp": "#7f7f7f",
    "ssp": "#4c8bbe",
    "asp": "#9bc4e2",
    "bsp-rr": "#e0a458",
    "flexrr": "#c44536",
    "lb-bsp": "#3d8361",
    "elasticbsp": "#7d5ba6",
}
IDEAL: dict[str, Any] = {"color": "#111111", "lw": 1.2, "ls": (0, (4, 2))}
MOVED: dict[str, Any] = {"ms": 3.5, "mfc": "white", "mec": "#111111", "mew": 0.8}
Colour = tuple[float, float, float]
NAMES = {"bsp": "BSP", "asp": "ASP", "bsp-rr": "BSP RR", "flexrr": "FlexRR"}


def save(figure: Figure, path: Path) -> None:
    """Write a figure."""
    figure.savefig(path, dpi=150)


def patterns_figure(config: StragglerConfig, summaries: Sequence[Summary]) -> Figure:
    """Time per iteration of every scheme on every pattern as bars, Ideal as a line; below, what workers do."""
    patterns = list(dict.fromkeys(summary.pattern for summary in summaries))
    schemes = list(dict.fromkeys(summary.scheme for summary in summaries))
    at = {(summary.pattern, summary.scheme): summary for summary in summaries}
    # Without pyplot, whose backend is that of the user's own plots, as in a notebook.
    width = max(6.5, 1.4 + 0.32 * len(patterns) * (len(schemes) + 1))
    figure = Figure(figsize=(width, 6.4), layout="constrained")
    time, shares = figure.subplots(2, 1, height_ratios=(2.2, 1), sharex=True)
    width = 0.84 / len(schemes)
    for s, scheme in enumerate(schemes):
        xs = [p - 0.42 + width * (s + 0.5) for p in range(len(patterns))]
        found = [at[pattern, scheme] for pattern in patterns]
        colour = _colour(scheme, schemes)
        means = [summary.per_iteration_s for summary in found]
        time.bar(xs, means, width * 0.92, color=colour, label=_name(scheme), zorder=2)
        _mark_times(time, xs, found, with_spread=config.seeds > 1)
        _draw_shares(shares, xs, found, width * 0.92, colour)
    for p, pattern in enumerate(patterns):
        time.hlines(at[pattern, schemes[0]].ideal_s, p - 0.44, p + 0.44, **IDEAL, zorder=4)
    time.plot([], [], **IDEAL, label="Ideal")
    shares.plot([], [], "D", **MOVED, label="work moved (below)", ls="none")
    shares.bar([0], [0], color="#bbbbbb", label="waiting (below)")
    time.set_ylabel("s per iteration (numbers: times Ideal)")
    time.set_title(_title(config), loc="left", fontsize=10)
    columns = max(2, int(figure.get_figwidth() / 1.75))
    figure.legend(ncols=columns, fontsize=8, frameon=False, loc="outside lower left")
    time.margins(y=0.08)
    shares.set_ylabel("% of time, of units")
    shares.set_xticks(range(len(patterns)), [_pattern_name(pattern) for pattern in patterns])
    for axes in (time, shares):
        _plain(axes)
    return figure


def _mark_times(axes: Axes, xs: Sequence[float], found: Sequence[Summary], *, with_spread: bool) -> None:
    """The spread over the seeds on the bars, and how many times Ideal they are."""
    if with_spread:
        means = [summary.per_iteration_s for summary in found]
        spread = [
            [summary.per_iteration_s - summary.least_s for summary in found],
            [summary.most_s - summary.per_iteration_s for summary in found],
        ]
        axes.errorbar(xs, means, spread, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=2, zorder=3)
    for x, summary in zip(xs, found, strict=True):
        axes.annotate(
            f"{summary.over_ideal:.2f}",
            (x, summary.most_s),
            (0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=6.5,
            color="#333333",
        )


def _draw_shares(
    axes: Axes, xs: Sequence[float], found: Sequence[Summary], width: float, colour: Colour
) -> None:
    """The share of time that workers wait as bars, the share of units that moved as diamonds."""
    axes.bar(xs, [100 * summary.waiting_share for summary in found], width, color=colour, zorder=2)
    moved = [
        (x, 100 * summary.moved_share) for x, summary in zip(xs, found, strict=True) if summary.moved_share
    ]
    if moved:
        axes.plot(*zip(*moved, strict=True), "D", **MOVED, zorder=4)


def variants_figure(config: StragglerConfig, summaries: Sequence[Summary]) -> Figure:
    """Time per iteration over Ideal for every variant of the parameters: one line per pattern and scheme."""
    variants = list(dict.fromkeys(summary.variant for summary in summaries))
    lines = list(dict.fromkeys((summary.pattern, summary.scheme) for summary in summaries))
    at = {(summary.pattern, summary.scheme, summary.variant): summary for summary in summaries}
    figure = Figure(figsize=(max(6.5, 0.9 * len(variants) + 2.5), 4.4), layout="constrained")
    time = figure.subplots()
    colours = colormaps["viridis"]
    one_scheme = len({scheme for _, scheme in lines}) == 1
    for k, (pattern, scheme) in enumerate(lines):
        found = [at[pattern, scheme, variant] for variant in variants]
        factor = [summary.per_iteration_s / summary.over_ideal for summary in found]
        colour = colours(0.08 + 0.84 * k / max(1, len(lines) - 1))
        label = _pattern_name(pattern) + ("" if one_scheme else f", {_name(scheme)}")
        time.plot(
            range(len(variants)),
            [s.over_ideal for s in found],
            "o-",
            ms=4,
            color=colour,
            label=label,
            zorder=3,
        )
        time.fill_between(
            range(len(variants)),
            [s.least_s / f for s, f in zip(found, factor, strict=True)],
            [s.most_s / f for s, f in zip(found, factor, strict=True)],
            color=colour,
            alpha=0.15,
            lw=0,
        )
    time.axhline(1, **IDEAL)
    time.annotate("Ideal", (0, 1), (0, -10), textcoords="offset points", ha="center", fontsize=8)
    time.set_xticks(range(len(variants)), [_as_written(variant) for variant in variants])
    time.set_xlabel(_as_written(config.variants_of))
    time.set_ylabel("time per iteration / Ideal")
    time.set_title(_title(config), loc="left", fontsize=10)
    time.legend(fontsize=8, frameon=False, loc="upper right", ncols=2)
    time.margins(y=0.2)
    time.set_ylim(bottom=0.93)
    _plain(time)
    return figure


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", lw=0.7, zorder=0)
    axes.tick_params(labelsize=8)
    axes.set_axisbelow(True)


def _title(config: StragglerConfig) -> str:
    setup = (
        f"{config.workers} workers on {config.machines} machines, {config.iterations} iterations, "
        f"{config.seeds} seeds"
    )
    return f"{_as_written(config.title)}\n{setup}" if config.title else setup


def _as_written(text: str) -> str:
    """Words of the user's as matplotlib shows them unchanged: what is between two dollars would be a formula."""
    return text.replace("$", r"\$")


def _colour(scheme: str, schemes: Sequence[str]) -> Colour:
    """The kind's colour; lighter for each further scheme of the same kind."""
    kind = scheme.partition(":")[0]
    same = [other for other in schemes if other.partition(":")[0] == kind]
    red, green, blue = to_rgb(COLOURS[kind])
    lighter = 0.65 * same.index(scheme) / max(1, len(same))
    return red + (1 - red) * lighter, green + (1 - green) * lighter, blue + (1 - blue) * lighter


def _name(scheme: str) -> str:
    kind, _, argument = scheme.partition(":")
    match kind:
        case "ssp":
            return f"SSP({argument})"
        case "lb-bsp":
            return f"LB-BSP {argument}"
        case "elasticbsp":
            return f"ElasticBSP R={argument.replace(',', ' ')}"
    return NAMES[kind]


def _pattern_name(pattern: str) -> str:
    kind, _, argument = pattern.partition(":")
    match kind:
        case "slow-worker":
            return f"slow worker {argument}%"
        case "disrupted-machine":
            return f"disrupted machine {argument}%"
        case "power-law":
            return f"power law α={argument}"
        case "heterogeneous":
            slowest, redraw, noise = (*argument.split(","), "1000", "0.01")[:3]
            return f"speeds {slowest} to 1\nredrawn every {float(redraw):,.0f}" + (
                f"\nnoise {noise}" if noise != "0.01" else ""
            )
        case "uneven":
            return f"uneven {argument}%"
        case "trace":
            return f"trace {_as_written(Path(argument).name)}"
    return pattern
