"""Pictures of batched transfers (iBatch)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.ibatch.batches import Batching
from pipeline.report.figure import FORWARD, LINK, STAGE_COLOURS, new_figure, plain, save


def draw_makespans(
    curves: dict[str, Sequence[float]], bandwidths: Sequence[float], path: Path, title: str
) -> None:
    """Makespans of several ways to batch, relative to the optimum, over the link's bytes per second."""
    figure = new_figure(8, 4.5)
    axes = figure.subplots()
    best = curves["ours"]
    for (name, values), colour in zip(curves.items(), STAGE_COLOURS, strict=False):
        axes.plot(
            bandwidths,
            [v / b for v, b in zip(values, best, strict=True)],
            marker="o",
            markersize=3,
            label=name,
            color=colour,
            linewidth=2 if name == "ours" else 1.3,
        )
    axes.set_xscale("log")
    axes.set_xlabel("link, bytes per second")
    axes.set_ylabel("pull and forward, relative to the optimum")
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    save(figure, path)


def draw_batching(
    startup_s: float,
    transfer_s: Sequence[float],
    forward_s: Sequence[float],
    found: dict[str, Batching],
    path: Path,
) -> None:
    """Pulls and forwards of several batchings under each other, as the paper's figure 4."""
    figure = new_figure(14, 1 + 1.1 * len(found))
    axes = figure.subplots()
    end_s = max(batching.makespan_s for batching in found.values())
    for row, batching in enumerate(found.values()):
        pull_s = done_s = 0.0
        for start, end in zip([0, *batching.ends[:-1]], batching.ends, strict=True):
            length = startup_s + sum(transfer_s[start:end])
            axes.barh(row - 0.2, length, 0.36, pull_s, color=LINK, edgecolor="white", linewidth=0.6)
            pull_s += length
            work = sum(forward_s[start:end])
            begin = max(pull_s, done_s)
            axes.barh(row + 0.2, work, 0.36, begin, color=FORWARD, edgecolor="white", linewidth=0.6)
            done_s = begin + work
        axes.text(
            batching.makespan_s + end_s * 0.005, row, f"{batching.makespan_s * 1e3:.1f} ms", va="center"
        )
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.set_xlim(0, end_s * 1.08)
    axes.set_xlabel("seconds")
    axes.set_title("pulls (above) and forward (below)", loc="left", fontsize=11)
    plain(axes)
    save(figure, path)
