"""The pictures of a run's report, drawn from its events alone; each is one inline SVG."""

from __future__ import annotations

import io
import math
import re

import matplotlib

matplotlib.use("svg")

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator

from agileml.events.run import MachineLost, MachineNoticed, MachinesJoined, MembershipChanged, RunRestarted
from agileml.events.schema import Log, RunEvent, of_type
from agileml.runs.report.lanes_plot import machine_lanes
from agileml.runs.report.market_plots import PICTURES as MARKET_PICTURES
from agileml.runs.report.style import GRID, LINE, STYLE, TIERS, thinned
from agileml.runs.report.work_plots import PICTURES as WORK_PICTURES
from agileml.runs.summary import bytes_by_kind, spent_by_machine
from agileml.runs.thinning import clocks_of

STAGES = {1: "#e4ecf7", 2: "#fbeed7", 3: "#dff2e4"}
SPENT = {  # a worker's activity: colour and legend
    "compute": ("#2e8b57", "compute"),
    "pull": ("#1f5fa8", "wait for parameters"),
    "push": ("#7aa6d8", "wait for the push"),
    "fold": ("#f0a35e", "add up and apply"),
    "frozen": ("#c0392b", "frozen by a change"),
}
MOST_BARS = 16
MARKS: dict[type[RunEvent], tuple[str, str, float]] = {  # marker, colour, height above the machines
    MachinesJoined: ("^", "#2e8b57", 1.10),
    MachineNoticed: ("v", "#c77700", 1.10),
    MachineLost: ("X", "#c0392b", 1.22),
    RunRestarted: ("D", "#6b3fa0", 1.22),
}


def pictures(log: Log) -> list[tuple[str, str]]:
    """`(title, SVG)` of every picture that these events have something to show in."""
    drawn = []
    blank: Figure | None = None  # kept while nothing is drawn: to make axes takes as long as a small picture
    with matplotlib.rc_context(STYLE):
        for title, draw in (
            ("Machines and stages over time", machines_over_time),
            ("Machine by machine", machine_lanes),
            ("Loss over time", loss_over_time),
            *MARKET_PICTURES,
            ("Loss over clocks", loss_over_clocks),
            ("Time per clock", time_per_clock),
            ("Where the time of a clock went", time_spent),
            *WORK_PICTURES,
            ("Bytes sent, by purpose", bytes_sent),
        ):
            figure = blank or Figure(figsize=(5.4, 2.7), layout="constrained")
            blank = None if draw(figure.gca(), log) else figure
            if blank is None:
                drawn.append((title, _svg(figure)))
    return drawn


def machines_over_time(axes: Axes, log: Log) -> bool:
    """Members by tier as steps, stages as bands, joins, notices and losses as marks."""
    changes = of_type(log, MembershipChanged)
    if not changes:
        return False
    end_s = _end_s(log)
    times_s = [*(change.t_s for change in changes), end_s]
    held = [change.event for change in (*changes, changes[-1])]
    reliable = np.array([change.reliable for change in held])
    total = reliable + np.array([change.transient for change in held])
    bands = stage_bands(axes, log)
    axes.fill_between(times_s, 0, reliable, step="post", color=TIERS["reliable"], alpha=0.9, linewidth=0)
    axes.fill_between(times_s, reliable, total, step="post", color=TIERS["transient"], alpha=0.9, linewidth=0)
    top = float(total.max())
    legend: list[Artist] = [Patch(color=color, label=tier) for tier, color in TIERS.items()]
    legend += bands
    for kind, (marker, color, height) in MARKS.items():
        at_s = [t_s for t_s in moments(log, kind) if t_s >= times_s[0]]
        if at_s:
            drawn = axes.scatter(
                at_s, [top * height] * len(at_s), marker=marker, color=color, s=26, label=kind.kind, zorder=4
            )
            legend.append(drawn)
    axes.set_ylim(0, top * 1.32)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_ylabel("machines")
    _time_axis(axes, times_s[0], end_s)
    axes.legend(
        handles=legend, ncols=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False,
        handlelength=1.1, columnspacing=1.2,
    )  # fmt: skip
    return True


def loss_over_time(axes: Axes, log: Log) -> bool:
    """Loss against seconds since the start, over the bands of the stages."""
    clocks = [e for e in clocks_of(log) if math.isfinite(e.event.loss)]
    if len(clocks) < 2:
        return False
    stage_bands(axes, log)
    _event_lines(axes, log)
    times_s, loss = thinned([e.t_s for e in clocks], [e.event.loss for e in clocks])
    axes.plot(times_s, loss, color=LINE, linewidth=1.3)
    _loss_axis(axes, loss)
    _time_axis(axes, times_s[0], _end_s(log))
    return True


def loss_over_clocks(axes: Axes, log: Log) -> bool:
    """Loss against clocks; a recomputed clock is drawn again."""
    clocks = [e for e in clocks_of(log) if math.isfinite(e.event.loss)]
    if len(clocks) < 2:
        return False
    axes.grid(color=GRID, linewidth=0.6)
    numbers, loss = thinned([e.event.clock for e in clocks], [e.event.loss for e in clocks])
    axes.plot(numbers, loss, color=LINE, linewidth=1.3)
    _loss_axis(axes, loss)
    axes.set_xlabel("clock")
    return True


def time_per_clock(axes: Axes, log: Log) -> bool:
    """Seconds from one clock's completion to the next."""
    clocks = clocks_of(log)
    if len(clocks) < 2:
        return False
    gaps_s = np.diff([e.t_s for e in clocks])
    counts = np.diff([e.event.clock for e in clocks])
    took_s = gaps_s / np.maximum(counts, 1)  # a line of an old run stands for several
    numbers, took = thinned([e.event.clock for e in clocks[1:]], np.maximum(took_s, 1e-6).tolist())
    axes.grid(color=GRID, linewidth=0.6)
    axes.plot(numbers, took, color=LINE, linewidth=0.6, alpha=0.35)
    axes.scatter(numbers, took, color=LINE, s=5, linewidth=0)
    median_s = float(np.median(took_s))
    axes.axhline(median_s, color="#c77700", linewidth=1)
    axes.set_title(f"median {EngFormatter('s')(median_s)}", fontsize=8, loc="right", color="#c77700", pad=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(EngFormatter("s"))
    axes.set_xlabel("clock")
    return True


def bytes_sent(axes: Axes, log: Log) -> bool:
    """Bytes by purpose, over the whole run."""
    totals = bytes_by_kind(log)
    if not any(totals.values()):
        return False
    names = list(totals)[::-1]
    values = [totals[name] for name in names]
    axes.barh(names, values, color=LINE, height=0.62)
    unit = EngFormatter("B", places=1)
    for row, value in enumerate(values):
        axes.text(value, row, f" {unit(value)}", va="center", fontsize=8)
    axes.set_xlim(0, max(values) * 1.2)
    axes.xaxis.set_major_formatter(EngFormatter("B"))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    return True


def time_spent(axes: Axes, log: Log) -> bool:
    """By machine, the shares of the time in which its worker had work; of many machines those with the most of it."""
    found = {
        machine: {what: spent.get(what, 0.0) for what in SPENT}
        for machine, spent in spent_by_machine(log).items()
        if sum(spent.get(what, 0.0) for what in SPENT) > 0
    }
    if not found:
        return False
    most = sorted(found, key=lambda machine: -sum(found[machine].values()))[:MOST_BARS]
    names = [machine for machine in found if machine in most][::-1]
    at = np.zeros(len(names))
    total = np.array([sum(found[name].values()) for name in names])
    for what, (color, label) in SPENT.items():
        shares = 100 * np.array([found[name][what] for name in names]) / total
        axes.barh(names, shares, left=at, color=color, height=0.7, label=label)
        at += shares
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the time in which its worker had work")
    axes.tick_params(axis="y", labelsize=9 if len(names) <= 8 else 6)
    axes.legend(
        ncols=3, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False, handlelength=1.1,
        columnspacing=1.2,
    )  # fmt: skip
    return True


def stage_bands(axes: Axes, log: Log) -> list[Patch]:
    """Colour the background by stage; return the legend's entries."""
    changes = of_type(log, MembershipChanged)
    ends_s = [*(change.t_s for change in changes), _end_s(log)][1:]
    for change, end_s in zip(changes, ends_s, strict=False):
        axes.axvspan(change.t_s, end_s, color=STAGES[change.event.stage], linewidth=0, zorder=0)
    stages = sorted({change.event.stage for change in changes})
    return [Patch(color=STAGES[stage], label=f"stage {stage}") for stage in stages]


def _event_lines(axes: Axes, log: Log) -> None:
    changes = of_type(log, MembershipChanged)
    for kind, (_, color, _) in MARKS.items():
        for t_s in moments(log, kind):
            if changes and t_s > changes[0].t_s:
                axes.axvline(t_s, color=color, linewidth=0.7, alpha=0.7, linestyle=(0, (3, 2)))


def moments(log: Log, kind: type[RunEvent]) -> list[float]:
    """When events of a kind happened. A loss that is noticed twice, or told to a new controller again, happens once."""
    found: list[float] = []
    away: set[str] = set()
    for each in log:
        if isinstance(each.event, MachinesJoined):
            away -= each.event.machines.keys()
        if isinstance(each.event, kind):
            if isinstance(each.event, MachineLost):
                if each.event.machine in away:
                    continue
                away.add(each.event.machine)
            found.append(each.t_s)
    return found


def _loss_axis(axes: Axes, loss: np.ndarray) -> None:
    axes.set_ylabel("loss")
    if loss.min() > 0 and loss.max() / loss.min() > 30:
        axes.set_yscale("log")


def _time_axis(axes: Axes, start_s: float, end_s: float) -> None:
    axes.set_xlim(start_s, max(end_s, start_s + 1e-3))
    axes.set_xlabel("seconds since the start of the run")


def _end_s(log: Log) -> float:
    return log[-1].t_s


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    # The viewBox stays: it scales with the page.
    return re.sub(r'\b(width|height)="[\d.]+pt" ?', "", svg, count=2)
