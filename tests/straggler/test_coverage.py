"""Sets of units: counting once, aligned subtrees, text."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from straggler.coverage import (
    MOST,
    Verdict,
    aligned_subtrees,
    judge,
    members,
    parse,
    ranges,
    show,
    span,
    subtrees_between,
    union,
)
from tests.thorough import examples

SETS = st.integers(0, 2**70 - 1)
EXAMPLES = settings(deadline=None, derandomize=True, max_examples=examples(200))


def as_set(units: int) -> set[int]:
    return {u for u in range(units.bit_length()) if units >> u & 1}


@EXAMPLES
@given(SETS)
def test_ranges_and_members_are_the_bits(units: int) -> None:
    found = ranges(units)
    assert {u for start, stop in found for u in range(start, stop)} == as_set(units)
    assert all(start < stop for start, stop in found)
    assert all(a[1] < b[0] for a, b in pairwise(found))
    assert list(members(units)) == sorted(as_set(units))


@EXAMPLES
@given(SETS, SETS)
def test_judge_counts_new_bundles_drops_known_ones_and_refuses_the_rest(counted: int, bundle: int) -> None:
    both = as_set(counted) & as_set(bundle)
    if not both:
        assert judge(counted, bundle) is Verdict.COUNT
    elif both == as_set(bundle):
        assert judge(counted, bundle) is Verdict.DUPLICATE
    else:
        with pytest.raises(ValueError, match="partly counted already"):
            judge(counted, bundle)


def fewest_subtrees(units: frozenset[int], start: int, size: int) -> int:
    """Brute force: a node of the tree is taken whole if it is full, else its children are looked at."""
    there = sum(start <= u < start + size for u in units)
    if there in (0, size):
        return int(there > 0)
    half = size // 2
    return fewest_subtrees(units, start, half) + fewest_subtrees(units, start + half, half)


@EXAMPLES
@given(SETS)
def test_aligned_subtrees_are_aligned_exact_and_fewest(units: int) -> None:
    found = aligned_subtrees(units)
    assert union(found) == units
    assert sum(part.bit_count() for part in found) == units.bit_count()
    for part in found:
        ((start, stop),) = ranges(part)
        size = stop - start
        assert size & (size - 1) == 0
        assert start % size == 0
    assert len(found) == fewest_subtrees(frozenset(as_set(units)), 0, 128)
    assert found == sorted(found)


@EXAMPLES
@given(st.integers(0, 1 << 14), st.integers(1, 1 << 12))
def test_subtrees_between_counts_the_aligned_ones(start: int, length: int) -> None:
    assert subtrees_between(start, start + length) == len(aligned_subtrees(span(start, start + length)))


@EXAMPLES
@given(SETS)
def test_show_and_parse_are_inverse(units: int) -> None:
    assert parse(show(units)) == units


def test_text_of_sets() -> None:
    assert show(0) == "-"
    assert show(0b1_0000_1111) == "0-3,8"
    assert parse("8,0-3") == 0b1_0000_1111


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1--2", "1-2-3", "3-1", "0,,1", " 1"])
def test_parse_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match="is no range of units"):
        parse(text)


def test_parse_takes_no_memory_for_units_that_no_clock_has() -> None:
    assert parse(f"{MOST - 1}") == 1 << MOST - 1
    for text in ("0-99999999999999999999", f"3,{MOST}"):
        with pytest.raises(ValueError, match=f"names a unit beyond the first {MOST}"):
            parse(text)


def test_span_of_nothing_is_empty() -> None:
    assert span(3, 3) == 0
    assert span(4, 3) == 0
    assert span(1, 3) == 0b110
