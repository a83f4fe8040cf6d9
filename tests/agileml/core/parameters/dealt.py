"""Random ways to deal units out."""

from __future__ import annotations

from hypothesis import strategies as st

from straggler.coverage import Units, span


def deal(data: st.DataObject, start: int, size: int) -> list[Units]:
    """Cut the units into aligned subtrees at random."""
    if size == 1 or not data.draw(st.booleans()):
        return [span(start, start + size)]
    half = size // 2
    return deal(data, start, half) + deal(data, start + half, half)
