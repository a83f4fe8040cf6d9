"""One look for all plots: colours by scheme and by kind of machine hour, light axes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.colors import TABLEAU_COLORS
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bidbrain.files.whole_file import whole_file
from bidbrain.report.tables import names_of

SCHEME_COLOURS = {
    "on_demand": "#6b7280",
    "standard_checkpoint": "#2f6fb3",
    "standard_young": "#7ba7d7",
    "standard_agileml": "#3c9a5f",
    "proteus": "#c8432b",
    "renewal": "#e08a1e",
    "one_hour_oracle": "#a78bba",
    "paid_hours_bound": "#cbbdd6",
    "paid_hours_schedule": "#b8a7c6",
    "static_checkpoint": "#2f6fb3",
    "elastic": "#3c9a5f",
    "spot_2026": "#c8432b",
}
OTHERS = ("#14808a", "#9c5b9f", "#7d6b29", "#b03a74", "#4b5ea8")
KIND_COLOURS = {"on-demand": "#6b7280", "spot, paid": "#2f6fb3", "spot, free": "#8fcf9f"}
MARKET_COLOURS = tuple(TABLEAU_COLORS.values())


def scheme_colours(schemes: Iterable[str]) -> dict[str, str]:
    """The colour of each scheme: the same in every plot of the same schemes, and no two alike if there are enough."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(schemes):
        usual = SCHEME_COLOURS.get(name) or OTHERS[sum(map(ord, name)) % len(OTHERS)]
        taken = found.values()
        found[name] = next((each for each in (usual, *OTHERS) if each not in taken), usual)
    return found


def label(scheme: str) -> str:
    """A scheme's name for people."""
    return scheme.rpartition(":")[2].replace("_", " ")


def labels(schemes: Iterable[str]) -> dict[str, str]:
    """The same for schemes that are shown side by side."""
    return {scheme: name if ":" in name else label(name) for scheme, name in names_of(schemes).items()}


def as_written(text: object) -> str:
    """A name of the user's as matplotlib shows it unchanged: what is between two dollars would be a formula."""
    return str(text).replace("$", r"\$")


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with light axes; the axes as a flat list."""
    # Without pyplot, whose backend is that of the user's own plots, as in a notebook.
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    flat = [axis for row in axes for axis in row]
    for axis in flat:
        soften(axis)
    return figure, flat


def soften(axis: Axes) -> None:
    """No frame above and at the right, a faint grid behind."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(True, axis="y", color="#e5e7eb", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=9)


def plain_ticks(axis: Axes) -> None:
    """A logarithmic y axis with numbers as people write them: 0.05, 0.1, 0.2, 0.5, 1."""
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG (no date in it: equal plots are equal files)."""
    with whole_file(path) as partial:
        figure.savefig(partial, format="png", dpi=130, metadata={"Software": None})
    return path
