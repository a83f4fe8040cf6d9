"""Swaps of slices: fewer sums, the same loads, and no move more."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.stage.placement import moves, spread
from agileml.core.stage.slice_swaps import MOST_SLICES, sums, with_fewer_sums
from straggler.coverage import aligned_subtrees
from tests.thorough import examples

NODES = ["a", "b", "c", "d", "e"]


@given(st.integers(0, 1 << 80))
def test_sums_are_the_aligned_subtrees_of_a_set(units: int) -> None:
    assert sums(units) == len(aligned_subtrees(units))


def counts(dealt: tuple[str, ...]) -> list[int]:
    """The sums of each worker."""
    return [sums(sum(1 << i for i, each in enumerate(dealt) if each == worker)) for worker in set(dealt)]


def squares(dealt: tuple[str, ...]) -> int:
    return sum(each**2 for each in counts(dealt))


def swapped(dealt: tuple[str, ...], one: int, other: int) -> tuple[str, ...]:
    found = list(dealt)
    found[one], found[other] = dealt[other], dealt[one]
    return tuple(found)


@settings(deadline=None, max_examples=examples(150))
@given(
    current=st.lists(st.sampled_from([*NODES, ""]), min_size=1, max_size=16).map(tuple),
    nodes=st.lists(st.sampled_from(NODES), min_size=1, unique=True),
)
def test_no_swap_without_a_move_more_would_leave_fewer_sums(
    current: tuple[str, ...], nodes: list[str]
) -> None:
    dealt = spread(current, nodes)
    found = with_fewer_sums(current, dealt)
    assert Counter(found) == Counter(dealt)
    assert moves(current, found) == moves(current, dealt)
    assert squares(found) <= squares(dealt)
    for one, other in combinations(range(len(found)), 2):
        option = swapped(found, one, other)
        assert moves(current, option) > moves(current, found) or squares(option) >= squares(found)


def test_a_worker_gives_up_slices_that_the_newcomer_can_add_up() -> None:
    """A fourth machine takes a slice each of two with three. By their last ones it would have 2 and 5."""
    before = tuple("aaabbbcc")
    plain = spread(before, ["a", "b", "c", "d"])
    assert "".join(plain) == "aadbbdcc"
    assert sorted(counts(plain)) == [1, 1, 2, 2]
    found = with_fewer_sums(before, plain)
    assert "".join(found) == "aaddbbcc"
    assert counts(found) == [1, 1, 1, 1]


def test_what_does_not_move_stays_and_many_slices_are_left_as_they_are() -> None:
    apart = tuple("abababab")
    assert with_fewer_sums(apart, apart) == apart
    many = tuple("ab" * MOST_SLICES)
    assert with_fewer_sums(("",) * len(many), many) == many
