"""Shared by all pictures: colours, and writing a file whole. The format follows the file's ending (png, svg, pdf)."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.whole_file import whole_file

FORWARD, BACKWARD, WEIGHTS, IDLE = "#4C78A8", "#72B07A", "#A9CFAE", "#EDEDED"
LINK = "#E0A33E"
STAGE_COLOURS = ("#4C78A8", "#72B07A", "#E0A33E", "#B56576", "#8E7CC3", "#5AAFB5", "#9C755F", "#BAB0AC")


class PictureError(ValueError):
    """A picture of no kind that can be drawn; the message is one sentence."""


def save(figure: Figure, path: Path) -> None:
    """Write a figure under its name only when it is complete. Raises PictureError for its ending, OSError."""
    ending = path.suffix.removeprefix(".").lower()
    if ending not in figure.canvas.get_supported_filetypes():
        raise PictureError(
            f"{path}: pictures end in .png, .svg or .pdf, found {path.suffix or 'no ending'!r}"
        )
    try:
        with whole_file(path) as partial:
            figure.savefig(partial, format=ending, dpi=160, bbox_inches="tight")
    finally:
        plt.close(figure)


def plain(axes: Axes) -> None:
    """No frame above and at the right."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
