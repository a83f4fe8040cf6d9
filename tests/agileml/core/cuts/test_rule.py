"""Which clock is cut next."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.cuts.rule import CutRule, OpenCut
from tests.thorough import examples


def test_cuts_are_about_as_far_apart_as_the_rule_says():
    rule = CutRule(every_s=1.0, max_clocks=64)
    assert rule.interval(None) == 1
    assert rule.interval(2.0) == 1
    assert rule.interval(0.25) == 4
    assert rule.interval(0.3) == 4
    assert rule.interval(0.001) == 64
    assert rule.interval(0.0) == 64


def test_cuts_are_farther_apart_where_they_are_long_on_their_way():
    rule = CutRule(every_s=1.0, max_clocks=64, travelling=0.25)
    assert rule.interval(1.0, travel_s=0.25) == 1
    assert rule.interval(1.0, travel_s=0.3) == 2
    assert rule.interval(1.5, travel_s=1.5) == 4
    assert rule.interval(0.01, travel_s=10.0) == 64
    assert rule.interval(1.0, travel_s=1e6) == 8, "what a loss can cost has a limit"


def test_a_cut_is_on_its_way_from_when_its_clock_is_reached():
    cut = OpenCut(1)
    cut.name(10, 4, last=100)
    cut.reached(13, 1.0)
    assert cut.travel_s(2.0) == 0.0
    cut.reached(14, 3.0)
    cut.reached(15, 4.0)
    assert cut.travel_s(5.0) == 2.0
    cut.name(14, 4, last=100)
    assert cut.travel_s(6.0) == 0.0


def test_a_cut_is_whole_when_every_part_of_the_named_clock_is_stored():
    cut = OpenCut(2)
    assert not cut.is_whole
    cut.name(10, 4, last=100)
    assert cut.next == 14
    cut.stored(0, 14)
    cut.stored(0, 14)
    cut.stored(1, 10)  # of a cut that was named before
    assert not cut.is_whole
    cut.stored(1, 14)
    assert cut.is_whole
    assert not cut.is_open_at(14), "a whole one is not named anew"


def test_the_last_clock_is_always_cut():
    cut = OpenCut(1)
    cut.name(98, 64, last=100)
    assert cut.next == 100


def test_a_missed_cut_is_named_farther_ahead_each_time_until_one_is_whole():
    cut = OpenCut(1)
    cut.name(0, 1, last=10**9)
    ahead = []
    version = 0
    for _ in range(4):
        version += 10
        cut.missed(version, 1, last=10**9)
        ahead.append(cut.next - version)
    assert ahead == [2, 4, 8, 16]
    cut.stored(0, cut.next)
    assert cut.is_whole
    cut.name(version, 1, last=10**9)
    assert cut.next == version + 1


@settings(deadline=None, derandomize=True, max_examples=examples(100))
@given(st.lists(st.booleans(), max_size=200))
def test_occasional_misses_do_not_add_up(misses):
    """A long run misses a cut now and then: the next ones are as near as ever."""
    cut, version = OpenCut(1), 0
    for is_missed in misses:
        cut.name(version, 4, last=10**12)
        version = cut.next
        if is_missed:
            cut.missed(version + 1, 4, last=10**12)
            version = cut.next
        cut.stored(0, cut.next)
        assert cut.is_whole
    cut.name(version, 4, last=10**12)
    cut.missed(cut.next + 1, 4, last=10**12)
    assert cut.next - version <= 4 + 1 + 4
