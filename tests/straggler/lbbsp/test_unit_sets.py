"""Unit sets from counts: everything dealt once, and nothing moved that need not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from straggler.coverage import ranges, span, union
from straggler.lbbsp.unit_sets import units_of_counts


@given(st.data())
def test_every_unit_is_dealt_once_and_as_few_as_can_be_move(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 40))
    owners = data.draw(st.lists(st.sampled_from(["a", "b", "c", "gone"]), min_size=total, max_size=total))
    home = [(w, union(1 << u for u, o in enumerate(owners) if o == w)) for w in sorted(set(owners))]
    workers = data.draw(st.permutations(["a", "b", "c", "new"]))
    cuts = sorted(data.draw(st.lists(st.integers(0, total), min_size=3, max_size=3)))
    counts = dict(zip(workers, [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)], strict=True))
    found = units_of_counts(home, counts)
    assert {w: units.bit_count() for w, units in found.items()} == counts
    assert union(found.values()) == span(0, total)
    had = dict(home)
    stayed = sum((found[w] & had.get(w, 0)).bit_count() for w in workers)
    assert stayed == sum(min(counts[w], had.get(w, 0).bit_count()) for w in workers)


def test_a_donor_gives_its_tail_and_moved_units_stay_near() -> None:
    home = [("a", span(0, 64)), ("b", span(64, 128)), ("c", span(128, 192)), ("d", span(192, 256))]
    found = units_of_counts(home, {"a": 30, "b": 58, "c": 84, "d": 84})
    assert found["a"] == span(0, 30)
    assert found["b"] == span(64, 122)
    assert ranges(found["c"]) == [(30, 50), (128, 192)]
    assert ranges(found["d"]) == [(50, 64), (122, 128), (192, 256)]


def test_plans_in_a_row_do_not_break_the_shares_up() -> None:
    """Each plan begins at home again, so the number of runs does not grow."""
    home = [(f"w{i}", span(32 * i, 32 * i + 32)) for i in range(8)]
    for step in range(50):
        counts = {f"w{i}": 32 + (7 * step + 3 * i) % 9 * (-1 if i % 2 else 1) for i in range(8)}
        counts["w0"] += 256 - sum(counts.values())
        assert sum(len(ranges(units)) for units in units_of_counts(home, counts).values()) <= 3 * 8


def test_counts_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match="that sum to 8"):
        units_of_counts([("a", 255)], {"a": 5, "b": 4})
