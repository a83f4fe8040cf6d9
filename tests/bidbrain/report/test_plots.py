"""Plots of an experiment: what lines say to those who look at them."""

from pathlib import Path

import pytest
from matplotlib import pyplot as plt

from bidbrain.report.plots import plot_sweep
from bidbrain.simulate.experiment import Result, summarise
from bidbrain.simulate.simulator import Outcome


def test_a_sweep_of_jobs_of_several_lengths_shows_which_line_is_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, close = [], plt.close
    monkeypatch.setattr(plt, "close", drawn.append)
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
    close(figure)
