"""Dividing a machine's units between its processes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.process.compute_pool.shares import shares
from straggler.coverage import span, union

PARTS = 4
LOADED = st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=5)


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), LOADED)
def test_every_unit_has_one_process_and_shares_are_even(units: int, loaded: list[set[int]]) -> None:
    found = shares(units, PARTS, loaded)
    assert union(found) == units
    sizes = [mine.bit_count() for mine in found]
    assert sum(sizes) == units.bit_count() and max(sizes) - min(sizes) <= 1


def test_slices_that_nobody_has_go_in_a_row() -> None:
    assert shares(span(0, 16), 1, [set(), set()]) == [span(0, 8), span(8, 16)]
    # The items that are there stay where they are, and half of the work moves.
    assert shares(span(8, 16), 1, [set(range(8)), set(range(8, 16))]) == [span(12, 16), span(8, 12)]
