"""Plots of an experiment: what lines say to those who look at them."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from bidbrain.report.plots import plot_cost_against_runtime, plot_sweep
from bidbrain.report.tables import rich_tables
from bidbrain.simulate.experiment import Result, summarise
from bidbrain.simulate.simulator import Outcome


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are written."""
    found: list[Figure] = []
    write = Figure.savefig

    def written(self: Figure, *args: Any, **options: Any) -> None:
        found.append(self)
        write(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", written)
    return found


def test_a_sweep_of_jobs_of_several_lengths_shows_which_line_is_which(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    job = (Outcome(0, 3600, True, 500, 0, 0, 10, 0),)
    rows = [
        summarise(Result(scheme, hours, job, 1000.0), 0)
        for hours in (2.0, 20.0)
        for scheme in ("proteus", "renewal")
    ]
    plot_sweep("boot_s", [60.0, 120.0], [rows, rows], tmp_path / "sweep.png")
    (figure,) = drawn
    for axes in figure.axes:
        looks = {(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}
        assert len(looks) == len(axes.get_lines()) == 4


OWN = ["first:Own", "second:Own", "third:Nwo", "expected_cost", "renewal"]


def results_of(schemes: list[str]) -> list[Result]:
    job = (Outcome(0, 3600, True, 500, 0, 0, 10, 0),)
    return [Result(scheme, 2.0, job, 1000.0) for scheme in schemes]


def test_policies_of_ones_own_can_be_told_apart(tmp_path: Path, drawn: list[Figure]) -> None:
    """Two classes of one name had one entry in the legend and one name in the table, and colours could be the same."""
    results = results_of(OWN)
    plot_cost_against_runtime(results, tmp_path / "points.png")
    ((axes,),) = (figure.axes for figure in drawn)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        *("first:Own", "second:Own", "Nwo", "expected cost", "renewal")
    ]
    colours = {tuple(dots.get_facecolor()[0][:3]) for dots in axes.collections}
    assert len(colours) == len(OWN)
    (table,) = rich_tables([summarise(result, 0) for result in results], "costs")
    names = ["first:Own", "second:Own", "Nwo", "expected_cost", "renewal"]
    assert list(table.columns[0].cells) == names


def test_a_sweep_is_drawn_from_the_least_value_to_the_greatest(tmp_path: Path, drawn: list[Figure]) -> None:
    tables = [[summarise(result, 0) for result in results_of(["renewal"])]] * 3
    plot_sweep("boot_s", [300.0, 60.0, 120.0], tables, tmp_path / "sweep.png")
    for axes in drawn[0].axes:
        assert [line.get_xdata().tolist() for line in axes.get_lines()] == [[60.0, 120.0, 300.0]]
