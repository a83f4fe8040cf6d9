"""Tables and figures of straggler runs: numbers as JSON and CSV, a picture as PNG."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from straggler.config import StragglerConfig
from straggler.simulate.schemes import Row

COLOURS = {
    "bsp": "#7f7f7f",
    "ssp": "#4c8bbe",
    "asp": "#9bc4e2",
    "bsp-rr": "#e0a458",
    "flexrr": "#c44536",
    "lb-bsp": "#3d8361",
    "elasticbsp": "#7d5ba6",
}
NAMES = {"bsp": "BSP", "asp": "ASP", "bsp-rr": "BSP RR", "flexrr": "FlexRR"}


@dataclass(frozen=True)
class Summary:
    """Over the seeds of one scheme on one pattern with one variant: means, and the spread of the time."""

    pattern: str
    variant: str
    scheme: str
    seeds: int
    per_iteration_s: float
    least_s: float
    most_s: float
    ideal_s: float
    over_ideal: float
    waiting_share: float
    moved_share: float
    messages: float
    redone_units: float
    supersteps: float


def summarise(rows: Sequence[tuple[str, Row]]) -> list[Summary]:
    """Rows (variant, row) to summaries, in the order of their first appearance."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for variant, row in rows:
        groups.setdefault((row.pattern, variant, row.scheme), []).append(row)
    return [
        Summary(
            pattern,
            variant,
            scheme,
            len(found),
            fmean(row.per_iteration_s for row in found),
            min(row.per_iteration_s for row in found),
            max(row.per_iteration_s for row in found),
            fmean(row.ideal_s for row in found),
            fmean(row.over_ideal for row in found),
            fmean(row.waiting_share for row in found),
            fmean(row.moved_share for row in found),
            fmean(row.messages for row in found),
            fmean(row.redone_units for row in found),
            fmean(row.supersteps for row in found),
        )
        for (pattern, variant, scheme), found in groups.items()
    ]


def write_report(out: Path, config: StragglerConfig, rows: Sequence[tuple[str, Row]]) -> None:
    """Write config.yaml, runs.csv, summary.json and figure.png into a new folder, all or nothing."""
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        _write(partial, config, rows)
        if out.exists():
            out.rmdir()  # it was looked at before the run: an empty folder
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(folder: Path, config: StragglerConfig, rows: Sequence[tuple[str, Row]]) -> None:
    summaries = summarise(rows)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(), sort_keys=False))
    (folder / "summary.json").write_text(
        json.dumps([asdict(summary) for summary in summaries], indent=1) + "\n"
    )
    with (folder / "runs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["variant", *asdict(rows[0][1])])
        writer.writerows([variant, *asdict(row).values()] for variant, row in rows)
    figure = variants_figure(config, summaries) if config.variants else patterns_figure(config, summaries)
    figure.savefig(folder / "figure.png", dpi=150)
    plt.close(figure)


def patterns_figure(config: StragglerConfig, summaries: Sequence[Summary]) -> Figure:
    """Time per iteration of every scheme on every pattern as bars, Ideal as a line; below, what workers do."""
    patterns = list(dict.fromkeys(summary.pattern for summary in summaries))
    schemes = list(dict.fromkeys(summary.scheme for summary in summaries))
    at = {(summary.pattern, summary.scheme): summary for summary in summaries}
    figure, (time, shares) = plt.subplots(
        2,
        1,
        figsize=(max(6.5, 1.4 + 0.32 * len(patterns) * (len(schemes) + 1)), 6.4),
        height_ratios=(2.2, 1),
        sharex=True,
        layout="constrained",
    )
    width = 0.84 / len(schemes)
    for s, scheme in enumerate(schemes):
        xs = [p - 0.42 + width * (s + 0.5) for p in range(len(patterns))]
        found = [at[pattern, scheme] for pattern in patterns]
        means = [summary.per_iteration_s for summary in found]
        spread = [
            [summary.per_iteration_s - summary.least_s for summary in found],
            [summary.most_s - summary.per_iteration_s for summary in found],
        ]
        time.bar(xs, means, width * 0.92, color=_colour(scheme, schemes), label=_name(scheme), zorder=2)
        if config.seeds > 1:
            time.errorbar(
                xs, means, spread, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=2, zorder=3
            )
        for x, summary in zip(xs, found, strict=True):
            time.annotate(
                f"{summary.over_ideal:.2f}",
                (x, summary.most_s),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=6.5,
                color="#333333",
            )
        shares.bar(
            xs,
            [100 * summary.waiting_share for summary in found],
            width * 0.92,
            color=_colour(scheme, schemes),
            zorder=2,
        )
        moved = [
            (x, 100 * summary.moved_share)
            for x, summary in zip(xs, found, strict=True)
            if summary.moved_share
        ]
        if moved:
            shares.plot(*zip(*moved, strict=True), "D", ms=3.5, mfc="white", mec="#111111", mew=0.8, zorder=4)
    for p, pattern in enumerate(patterns):
        ideal = at[pattern, schemes[0]].ideal_s
        time.hlines(ideal, p - 0.44, p + 0.44, color="#111111", lw=1.2, ls=(0, (4, 2)), zorder=4)
    time.plot([], [], color="#111111", lw=1.2, ls=(0, (4, 2)), label="Ideal")
    shares.plot(
        [], [], "D", ms=3.5, mfc="white", mec="#111111", mew=0.8, label="work moved (below)", ls="none"
    )
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


def variants_figure(config: StragglerConfig, summaries: Sequence[Summary]) -> Figure:
    """Time per iteration over Ideal for every variant of the parameters: one line per pattern and scheme."""
    variants = list(dict.fromkeys(summary.variant for summary in summaries))
    lines = list(dict.fromkeys((summary.pattern, summary.scheme) for summary in summaries))
    at = {(summary.pattern, summary.scheme, summary.variant): summary for summary in summaries}
    figure, time = plt.subplots(figsize=(max(6.5, 0.9 * len(variants) + 2.5), 4.4), layout="constrained")
    colours = plt.get_cmap("viridis")
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
    time.axhline(1, color="#111111", lw=1.2, ls=(0, (4, 2)))
    time.annotate("Ideal", (0, 1), (0, -10), textcoords="offset points", ha="center", fontsize=8)
    time.set_xticks(range(len(variants)), variants)
    time.set_xlabel(config.variants_of)
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
    return f"{config.title}\n{setup}" if config.title else setup


def _colour(scheme: str, schemes: Sequence[str]) -> tuple[float, float, float]:
    """The kind's colour; lighter for each further scheme of the same kind."""
    kind = scheme.partition(":")[0]
    same = [other for other in schemes if other.partition(":")[0] == kind]
    red, green, blue = matplotlib.colors.to_rgb(COLOURS[kind])
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
            return f"trace {Path(argument).name}"
    return pattern
