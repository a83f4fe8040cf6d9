"""Shared by all pictures: colours, and writing a file whole. The format follows the file's ending (png, svg, pdf)."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from pipeline.whole_file import whole_file

FORWARD, BACKWARD, WEIGHTS, IDLE = "#4C78A8", "#72B07A", "#A9CFAE", "#EDEDED"
LINK = "#E0A33E"
STAGE_COLOURS = ("#4C78A8", "#72B07A", "#E0A33E", "#B56576", "#8E7CC3", "#5AAFB5", "#9C755F", "#BAB0AC")


class PictureError(ValueError):
    """A picture of no kind that can be drawn; the message is one sentence."""


def check_ending(path: Path) -> None:
    """Raise PictureError for the name of no kind of picture."""
    if path.suffix.removeprefix(".").lower() not in FigureCanvasBase.get_supported_filetypes():
        raise PictureError(
            f"{path}: found {path.suffix or 'no ending'!r}, expected a picture that ends in .png, .svg or .pdf"
        )


def new_figure(width: float, height: float) -> Figure:
    """An empty figure. Without pyplot, whose backend is that of the user's own plots, as in a notebook."""
    return Figure(figsize=(width, height))


def save(figure: Figure, path: Path) -> None:
    """Write a figure under its name only when it is complete. Raises PictureError for its ending, OSError."""
    check_ending(path)
    with whole_file(path) as partial:
        figure.savefig(partial, format=path.suffix.removeprefix(".").lower(), dpi=160, bbox_inches="tight")


def plain(axes: Axes) -> None:
    """No frame above and at the right."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
