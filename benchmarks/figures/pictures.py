"""Bars, curves and points for figures whose commands draw none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.report.figure import STAGE_COLOURS, new_figure, plain, save

MARKERS = "o^sDvP"


def bars(
    path: Path, groups: Mapping[str, Mapping[str, float]], height: str, title: str, *, decimals: int = 1
) -> None:
    """Groups of bars with their figures on top; a bar's colour is that of its place in the group. Its name stands
    below it, or in a legend where all groups have the same."""
    alike = len({tuple(group) for group in groups.values()}) == 1
    figure = new_figure(max(6.0, 0.6 * sum(len(g) + 1 for g in groups.values())), 4.2)
    axes = figure.subplots()
    at, places = 0.0, []
    for number, group in enumerate(groups.values()):
        for place, (name, value) in enumerate(group.items()):
            label = name if alike and number == 0 else None
            axes.bar(at + place, value, 0.92, color=STAGE_COLOURS[place % len(STAGE_COLOURS)], label=label)
            said = {"textcoords": "offset points", "fontsize": 8}
            axes.annotate(f"{value:.{decimals}f}", (at + place, value), (0, 3), ha="center", **said)
            if not alike:
                axes.annotate(name, (at + place, 0), (4, -4), ha="right", va="top", rotation=35, **said)
        places.append(at + (len(group) - 1) / 2)
        at += len(group) + 0.8
    longest = max(len(name) for group in groups.values() for name in group)
    axes.set_xticks(places, list(groups))
    axes.tick_params(axis="x", length=0, pad=5 if alike else 12 + 2.7 * longest, labelsize=10)
    axes.set_ylabel(height)
    axes.set_title(title, loc="left", fontsize=11)
    if alike:
        axes.legend(frameon=False, fontsize=9)
    plain(axes)
    save(figure, path)


def curves(
    path: Path,
    panels: Sequence[tuple[str, Mapping[str, Mapping[float, float]]]],
    along: str,
    title: str,
    *,
    wide: int = 2,
) -> None:
    """Panels, `wide` in a row, each (its height's name, curves by their names, each y by x)."""
    wide = min(wide, len(panels))
    high = -(-len(panels) // wide)
    figure = new_figure(5.2 * wide, 3.8 * high)
    grid = figure.subplots(high, wide, squeeze=False)
    for axes, (height, found) in zip(grid.flat, panels, strict=False):
        # Later curves are thinner, so that equal ones show.
        kinds = zip(found.items(), STAGE_COLOURS, MARKERS, (4.6, 2.4, 1.6, 1.2, 1.0, 0.8), strict=False)
        for (name, curve), colour, marker, width in kinds:
            style = {"marker": marker, "markersize": 3.5 + width, "linewidth": width}
            axes.plot(list(curve), list(curve.values()), label=name, color=colour, **style)
        axes.set_xlabel(along)
        axes.set_ylabel(height)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        plain(axes)
        if len(found) > 1:
            axes.legend(frameon=False, fontsize=9)
    grid[0][0].set_title(title, loc="left", fontsize=11)
    figure.tight_layout()
    save(figure, path)


def points(
    path: Path, found: Mapping[str, Sequence[tuple[float, float]]], along: str, height: str, title: str
) -> None:
    """Kinds of points around the line on which both are equal."""
    figure = new_figure(5.6, 4.6)
    axes = figure.subplots()
    for (name, places), colour, marker in zip(found.items(), STAGE_COLOURS, MARKERS, strict=False):
        axes.scatter(*zip(*places, strict=True), label=name, color=colour, marker=marker, s=36)
    most = max(max(pair) for places in found.values() for pair in places) * 1.05
    axes.plot([0, most], [0, most], color="#999999", linewidth=1, linestyle="--", label="equal")
    axes.set_xlabel(along)
    axes.set_ylabel(height)
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    plain(axes)
    axes.legend(frameon=False, fontsize=9)
    save(figure, path)
