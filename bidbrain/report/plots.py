"""Plots of an experiment: cost and runtime by scheme, machine hours by kind, cost against runtime, a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bidbrain.money import HOUR_S
from bidbrain.report.style import KIND_COLOURS, labels, new_figure, plain_ticks, save, scheme_colours
from bidbrain.simulate.experiment import Result, Row


def plot_cost_and_runtime(rows: Sequence[Row], path: Path) -> Path:
    """Bars per scheme and job length (thesis, figures 4.7 and 4.8); whiskers are the 95% intervals of the cost."""
    hours = sorted({row.job_hours for row in rows})
    label, colour = (of([row.scheme for row in rows]) for of in (labels, scheme_colours))
    figure, axes = new_figure(10.5, 2.1 + 0.42 * len(rows), len(hours), 2)
    for i, length in enumerate(hours):
        own = [row for row in rows if row.job_hours == length][::-1]
        names = [label[row.scheme] + (" *" if row.yardstick else "") for row in own]
        places = np.arange(len(own))
        colours = [colour[row.scheme] for row in own]
        cost, runtime = axes[2 * i], axes[2 * i + 1]
        means = np.array([row.cost for row in own])
        spread = np.array(
            [[row.cost - row.cost_low for row in own], [row.cost_high - row.cost for row in own]]
        )
        cost.barh(places, means, color=colours, height=0.68)
        cost.errorbar(
            means, places, xerr=np.maximum(spread, 0), fmt="none", ecolor="#111827", elinewidth=1, capsize=2
        )
        runtime.barh(places, [row.runtime for row in own], color=colours, height=0.68)
        for axis, values, ends in (
            (cost, [row.cost for row in own], [row.cost_high for row in own]),
            (runtime, [row.runtime for row in own], [row.runtime for row in own]),
        ):
            for place, value, end in zip(places, values, ends, strict=True):
                text = "no job finished" if np.isnan(value) else f"{value:.3f}"
                axis.annotate(
                    text, (0 if np.isnan(value) else end, place), (5, 0),
                    textcoords="offset points", va="center", fontsize=9,
                )  # fmt: skip
            axis.set_yticks(places)
            axis.set_yticklabels(names)
            axis.axvline(1.0, color="#9ca3af", linewidth=1, linestyle="--")
            axis.grid(True, axis="x", color="#e5e7eb", linewidth=0.8)
            axis.grid(False, axis="y")
            axis.margins(x=0.14)
        runtime.tick_params(labelleft=False)
        cost.set_title(f"cost, jobs of {length:g} h (all on-demand = 1)", fontsize=11, loc="left")
        runtime.set_title("runtime (all on-demand = 1)", fontsize=11, loc="left")
    if any(row.yardstick for row in rows):
        figure.supxlabel("* knows the future: a yardstick that cannot be run", fontsize=9, color="#6b7280")
    return save(figure, path)


def plot_machine_hours(results: Sequence[Result], vcpus_per_machine: int, path: Path) -> Path:
    """Machine hours per job by kind (thesis, figure 4.9): on-demand, spot that was paid, spot that was free."""
    hours = sorted({result.job_hours for result in results})
    label = labels([result.scheme for result in results])
    figure, axes = new_figure(10, 1.5 + 0.42 * len(results), len(hours), 1)
    for axis, length in zip(axes, hours, strict=True):
        own = [r for r in results if r.job_hours == length and r.finished and not r.is_bound]
        own = own[::-1]
        left = np.zeros(len(own))
        unit = vcpus_per_machine * HOUR_S
        for kind, colour in KIND_COLOURS.items():
            values = np.array([_hours(result, kind) / unit for result in own])
            axis.barh(range(len(own)), values, left=left, color=colour, height=0.68, label=kind)
            left += values
        for place, result in enumerate(own):
            free = float(np.mean([outcome.free_fraction for outcome in result.finished]))
            axis.annotate(
                f"{free:.0%} free", (left[place], place), (5, 0),
                textcoords="offset points", va="center", fontsize=9,
            )  # fmt: skip
        axis.set_yticks(range(len(own)))
        axis.set_yticklabels([label[result.scheme] for result in own])
        axis.grid(True, axis="x", color="#e5e7eb", linewidth=0.8)
        axis.grid(False, axis="y")
        axis.margins(x=0.1)
        axis.set_title(
            f"machine hours per job of {length:g} h (machines of {vcpus_per_machine} vCPUs)",
            fontsize=11,
            loc="left",
        )
    axes[0].legend(frameon=False, ncols=3, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1.0))
    return save(figure, path)


def _hours(result: Result, kind: str) -> float:
    done = result.finished
    if kind == "on-demand":
        return float(np.mean([o.on_demand_vcpu_s for o in done]))
    if kind == "spot, free":
        return float(np.mean([o.free_vcpu_s for o in done]))
    return float(np.mean([o.spot_vcpu_s - o.free_vcpu_s for o in done]))


def plot_cost_against_runtime(results: Sequence[Result], path: Path) -> Path:
    """Every job as a point, every scheme's mean as a disc; one panel per job length."""
    hours = sorted({result.job_hours for result in results})
    label, colours = (of([result.scheme for result in results]) for of in (labels, scheme_colours))
    figure, axes = new_figure(6.6 * len(hours) + 1.6, 5, 1, len(hours))
    for axis, length in zip(axes, hours, strict=True):
        for result in results:
            if result.job_hours != length or not result.finished:
                continue
            costs, times = result.costs(), result.runtimes()
            colour = colours[result.scheme]
            axis.scatter(times, costs, s=5, color=colour, alpha=0.18, linewidths=0)
            axis.scatter(
                [np.mean(times)], [np.mean(costs)], s=75, color=colour, edgecolor="white", linewidth=1.2,
                label=label[result.scheme] + (" *" if result.yardstick else ""), zorder=3,
            )  # fmt: skip
        axis.set_xlabel("runtime (all on-demand = 1)")
        axis.set_ylabel("cost (all on-demand = 1), log scale")
        axis.set_yscale("log")
        plain_ticks(axis)
        axis.grid(True, color="#e5e7eb", linewidth=0.8)
        axis.set_title(f"cost against runtime, jobs of {length:g} h", fontsize=11, loc="left")
    pairs = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in axes]
    # In one panel a scheme may have finished nothing.
    named = {name: handle for each in pairs for handle, name in each}
    if named:
        place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
        axes[-1].legend(list(named.values()), list(named), frameon=False, fontsize=9, **place)
    return save(figure, path)


def plot_sweep(key: str, values: Sequence[float], tables: Sequence[Sequence[Row]], path: Path) -> Path:
    """Cost and runtime of every scheme over the values of one setting."""
    figure, (cost, runtime) = new_figure(11.5, 4.4, 1, 2)
    in_order = sorted(zip(values, tables, strict=True), key=lambda each: each[0])
    lines = {(row.scheme, row.job_hours): None for rows in tables for row in rows}
    label, colours = (of([scheme for scheme, _ in lines]) for of in (labels, scheme_colours))
    many = len({hours for _, hours in lines}) > 1 and key != "job_hours"
    keys = list(lines) if key != "job_hours" else list({(scheme, None): None for scheme, _ in lines})
    lengths = list(dict.fromkeys(hours for _, hours in keys))
    for scheme, hours in keys:
        own = [
            (value, row)
            for value, rows in in_order
            for row in rows
            if row.scheme == scheme and (hours is None or row.job_hours == hours)
        ]
        at = [value for value, _ in own]
        name = label[scheme] + (f", {hours:g} h" if many and hours is not None else "")
        # A scheme has one colour, each length of its jobs a style.
        colour, style = colours[scheme], ("-", "--", ":", "-.")[lengths.index(hours) % 4]
        cost.plot(at, [row.cost for _, row in own], marker="o", ms=4, color=colour, ls=style, label=name)
        cost.fill_between(
            at, [r.cost_low for _, r in own], [r.cost_high for _, r in own], color=colour, alpha=0.12
        )
        runtime.plot(at, [row.runtime for _, row in own], marker="o", ms=4, color=colour, ls=style)
    for axis, title in ((cost, "cost (all on-demand = 1)"), (runtime, "runtime (all on-demand = 1)")):
        axis.set_xlabel(key.replace("_", " "))
        axis.set_title(title, fontsize=11, loc="left")
        axis.margins(y=0.1)
    cost.legend(frameon=False, fontsize=9)
    return save(figure, path)
