"""The common style of a report's pictures: colours, type, and thinning of long series."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

INK, GRID, LINE = "#1f2933", "#dfe4ea", "#1f5fa8"
TIERS = {"reliable": "#1f5fa8", "transient": "#f0a35e"}
MOST_POINTS = 1500
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


def thinned(x: Sequence[float], y: Sequence[float], most: int = MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """At most about `most` points: of each bucket the lowest and the highest, in their order, and the ends."""
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    if len(xs) <= most:
        return xs, ys
    keep = {0, len(xs) - 1}
    edges = np.linspace(0, len(xs), most // 2 + 1).astype(int)
    for start, stop in pairwise(edges.tolist()):
        keep |= {start + int(ys[start:stop].argmin()), start + int(ys[start:stop].argmax())}
    chosen = sorted(keep)
    return xs[chosen], ys[chosen]
