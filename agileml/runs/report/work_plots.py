"""Pictures of the units that each machine computed, and of its waiting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from agileml.application import Array
from agileml.events.schema import Log
from agileml.runs.work import WorkWindow, machines_of, waiting, waiting_share, work_windows

MOST_MACHINES = 8
ALL, OTHERS = "#1f2933", "#cbd2d9"


def units_over_time(axes: Axes, log: Log) -> bool:
    """The share of the units that each machine computed, stacked."""
    windows = work_windows(log)
    if len(windows) < 2:
        return False
    names = machines_of(windows, MOST_MACHINES)
    below = np.zeros(len(windows) + 1)
    whole = np.array([sum(work.units for work in window.by_machine.values()) for window in windows])
    for index, name in enumerate(names):
        units = np.array([w.by_machine[name].units if name in w.by_machine else 0 for w in windows])
        top = below + _held(100 * units / np.maximum(1, whole))
        axes.fill_between(
            _times_s(windows), below, top, step="post", color=_color(index), linewidth=0, label=name
        )
        below = top
    if below.min() < 99.9:
        axes.fill_between(
            _times_s(windows), below, 100, step="post", color=OTHERS, linewidth=0, label="others"
        )
    axes.set_ylim(0, 100)
    axes.set_ylabel("% of the units")
    _finish(axes, windows)
    return True


def waiting_over_time(axes: Axes, log: Log) -> bool:
    """The share of its time that each machine waited in the middle of clocks, and that of all together."""
    windows = work_windows(log)
    if len(windows) < 2:
        return False
    axes.grid(color="#dfe4ea", linewidth=0.6)
    for index, name in enumerate(machines_of(windows, MOST_MACHINES)):
        shares = [waiting(w.by_machine[name]) if name in w.by_machine else np.nan for w in windows]
        axes.step(
            _times_s(windows),
            _held(100 * np.array(shares)),
            where="post",
            color=_color(index),
            linewidth=1,
            label=name,
        )
    together = np.array([waiting_share([window]) or 0.0 for window in windows])
    axes.step(_times_s(windows), _held(100 * together), where="post", color=ALL, linewidth=1.6, label="all")
    share = waiting_share(windows)
    axes.set_title(f"{100 * (share or 0.0):.1f}% over the run", fontsize=8, loc="right", pad=2)
    axes.set_ylim(0, 100)
    axes.set_ylabel("% of its time")
    _finish(axes, windows)
    return True


def _times_s(windows: Sequence[WorkWindow]) -> list[float]:
    return [*(window.start_s for window in windows), windows[-1].end_s]


def _held(values: Array) -> Array:
    """Values of windows as values from each moment on."""
    return np.append(values, values[-1])


def _color(index: int) -> tuple[float, float, float, float]:
    found: tuple[float, float, float, float] = colormaps["tab10"](index)
    return found


def _finish(axes: Axes, windows: Sequence[WorkWindow]) -> None:
    axes.set_xlim(windows[0].start_s, max(windows[-1].end_s, windows[0].start_s + 1e-3))
    axes.set_xlabel("seconds since the start of the run")
    axes.legend(
        ncols=5, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False, handlelength=1.1,
        columnspacing=1.2,
    )  # fmt: skip


PICTURES = (("Who computed the units", units_over_time), ("Waiting for others", waiting_over_time))
