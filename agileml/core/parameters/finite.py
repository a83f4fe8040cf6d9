"""Looking for NaN and infinities in many numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from agileml.application import Array

AT_ONCE = 1 << 17  # elements that stay in a core's cache from one look at them to the next


def slices(elements: int) -> Iterator[slice]:
    """The slices of a flat array in order, each of at most `AT_ONCE` elements."""
    return (slice(start, start + AT_ONCE) for start in range(0, elements, AT_ONCE))


def is_sound(values: Array, *, may_be_infinite: bool = False) -> bool:
    """True when no element of a flat array is NaN, nor infinite unless it may be."""
    return all(_is_sound(values[part], may_be_infinite) for part in slices(values.size))


def _is_sound(values: Array, may_be_infinite: bool) -> bool:
    with np.errstate(invalid="ignore"):
        # The smallest of numbers with a NaN among them is NaN. Two looks take less than one at `isfinite` of each.
        least = values.min()
        if may_be_infinite:
            return not math.isnan(least)
        return math.isfinite(least) and math.isfinite(values.max())
