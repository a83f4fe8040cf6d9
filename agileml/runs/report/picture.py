"""A picture of a run: machines as lanes, one row each, with how each one went, above the loss."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from agileml.events.run import RunRestarted
from agileml.events.schema import Log, of_type
from agileml.runs.folder import replacing
from agileml.runs.report.lanes import Lane, MachineLanes
from agileml.runs.report.series import Series
from agileml.runs.thinning import clocks_of

MOST_ROWS = 40  # of a picture; of more machines the newest
NOTICE, LOST = "#c77700", "#c0392b"
MOST_POINTS = 750  # of the loss
INK, GRID, LINE = "#1f2933", "#dfe4ea", "#1f5fa8"
TIERS = {"reliable": "#1f5fa8", "transient": "#f0a35e"}
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "proteus",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": "#9aa5b1",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def lanes_of(log: Log, most: int = MOST_ROWS) -> list[Lane]:
    """The machines of a run in the order in which they came; of more than `most` the newest ones."""
    lanes = MachineLanes(len(log))
    for each in log:
        lanes.add(each.t_s, each.event)
    return lanes.all[-most:]


def _draw_lanes(axes: Axes, lanes: list[Lane], log: Log) -> None:
    """A row for each machine: when it was a member, its notices (triangles), and how it went (a cross: suddenly)."""
    end_s = log[-1].t_s
    for row, lane in enumerate(lanes):
        to_s = end_s if lane.to_s is None else lane.to_s
        axes.barh(row, to_s - lane.from_s, left=lane.from_s, height=0.62, color=TIERS[lane.tier], linewidth=0)
        for at_s, what in lane.marks:
            if what == "notice":
                axes.plot(
                    at_s, row, "v", color=NOTICE, markersize=4.5, markeredgecolor="white", markeredgewidth=0.4
                )
        if lane.is_sudden:
            axes.plot(
                to_s, row, "X", color=LOST, markersize=5.5, markeredgecolor="white", markeredgewidth=0.4
            )
    for restart in of_type(log, RunRestarted):
        axes.axvline(restart.t_s, color=INK, linewidth=0.8, linestyle=":")
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_yticks(range(len(lanes)), [lane.machine for lane in lanes], fontsize=min(8.0, 160 / len(lanes)))
    axes.set_xlim(lanes[0].from_s, max(end_s, lanes[0].from_s + 1e-3))
    axes.legend(
        handles=_legend(lanes),
        ncols=4,
        fontsize=8,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        frameon=False,
    )


def _legend(lanes: list[Lane]) -> list[Patch | Line2D]:
    tiers = {lane.tier for lane in lanes}
    found: list[Patch | Line2D] = [
        Patch(color=color, label=tier) for tier, color in TIERS.items() if tier in tiers
    ]
    if any(what == "notice" for lane in lanes for _, what in lane.marks):
        found.append(
            Line2D([], [], color=NOTICE, marker="v", linestyle="", markersize=5, label="preemption notice")
        )
    if any(lane.is_sudden for lane in lanes):
        found.append(
            Line2D([], [], color=LOST, marker="X", linestyle="", markersize=6, label="gone without leaving")
        )
    return found


def lanes_and_loss(log: Log) -> Figure | None:
    """The machines above the loss, on one axis of time; None where no machine or no clock was logged."""
    clocks = [each for each in clocks_of(log) if math.isfinite(each.event.loss)]
    lanes = lanes_of(log)
    if not lanes or len(clocks) < 2:
        return None
    with matplotlib.rc_context(STYLE):
        height = 1.1 + 0.16 * len(lanes)
        figure = Figure(figsize=(8.6, height + 1.7), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[height, 1.7])
        _draw_lanes(above, lanes, log)
        above.set_ylabel("machines")
        loss = Series(MOST_POINTS)
        for each in clocks:
            loss.add(each.t_s, each.event.loss)
        below.plot(*zip(*loss.points(), strict=True), color=LINE, linewidth=1.2)
        below.grid(color=GRID, linewidth=0.6)
        below.set_ylabel("loss")
        below.set_xlabel("seconds since the start of the run")
    return figure


def write_picture(log: Log, path: Path) -> bool:
    """Draw `lanes_and_loss` to a file, by its ending; False where there is nothing to draw. Raises StorageError."""
    figure = lanes_and_loss(log)
    if figure is None:
        return False
    with matplotlib.rc_context(STYLE), replacing(path) as temporary:
        kind = path.suffix.removeprefix(".")
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(temporary, format=kind, dpi=160, metadata=metadata)
    return True
