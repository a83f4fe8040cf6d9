"""The units of a stage's machines: none is slower than need be, and no other ranges have fewer sums."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agileml.core.stage.shares import counts_by_weight
from agileml.core.stage.unit_ranges import MANY, exchanged, unit_ranges
from straggler.coverage import aligned_subtrees, span


def most_and_all(ranges: list[tuple[int, int]]) -> tuple[int, int]:
    """The sums of the machine with the most, and of all."""
    sums = [len(aligned_subtrees(span(*ends))) for ends in ranges]
    return max(sums), sum(sums)


@given(st.data())
def test_no_ranges_that_are_as_fast_have_fewer_sums(data: st.DataObject) -> None:
    units = data.draw(st.sampled_from([4, 8, 16]))
    speeds = data.draw(st.lists(st.sampled_from([0.5, 1.0, 1.3, 2.0]), min_size=1, max_size=4))
    weights = {f"m{at}": speed for at, speed in enumerate(speeds)}
    counts = counts_by_weight(units, weights, {})
    # A machine that has one unit may take longest with it; the others need not be as slow.
    slowest = max([n / weights[name] for name, n in counts.items() if n > 1], default=0.0)
    limits = [
        max(n, *(k for k in range(units + 1) if k / weights[name] <= slowest)) for name, n in counts.items()
    ]

    found = unit_ranges(units, weights)

    options = [list(pairwise((0, *cuts, units))) for cuts in combinations(range(1, units), len(speeds) - 1)]
    as_fast = [
        option
        for option in options
        if all(b - a <= most for (a, b), most in zip(option, limits, strict=True))
    ]
    assert list(found) == list(weights)
    assert list(found.values()) in as_fast
    assert most_and_all(list(found.values())) == min(most_and_all(option) for option in as_fast)


def test_three_machines_of_one_speed_have_five_sums_of_16_units() -> None:
    assert unit_ranges(16, dict.fromkeys("abc", 1.0)) == {"a": (0, 6), "b": (6, 12), "c": (12, 16)}


def test_a_stage_of_very_many_machines_has_the_counts_as_they_come() -> None:
    weights = {str(each): 1.0 for each in range(MANY + 1)}
    found = unit_ranges(1 << 16, weights)
    counts = counts_by_weight(1 << 16, weights, {})
    assert [stop - start for start, stop in found.values()] == list(counts.values())
    assert list(found.values())[-1][1] == 1 << 16


@pytest.mark.parametrize(("machines", "times"), [(1, 0.0), (2, 1.0), (4, 1.5), (3, 2.0)])
def test_three_machines_exchange_more_than_their_one_sum_would_be(machines: int, times: float) -> None:
    """With one sum each that is 2 (m - 1) / m times the layers; of three machines two have two sums of 16 units."""
    assert exchanged(16, machines) == pytest.approx(times)
