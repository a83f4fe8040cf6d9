"""Whether what a leaver holds can move in time, and which way costs the least where that is not certain."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.change.short_notice import (
    MARGIN,
    Arriving,
    Leaver,
    RollBack,
    chance,
    judge_notice,
    leavers,
)
from agileml.core.change.transfers import Transfer, through
from agileml.events.terms import Way
from tests.thorough import examples

stable = settings(deadline=None, derandomize=True, max_examples=examples(300))
seconds = st.floats(0.0, 1e4)
some_s = st.floats(1e-3, 1e4)


@st.composite
def roll_backs(draw: st.DrawFn) -> RollBack:
    clocks = draw(st.integers(0, 500))
    clock_s = draw(st.none() | st.floats(1e-3, 10.0))
    return RollBack(draw(st.integers(0, 99)), clocks, clock_s and clocks * clock_s, draw(seconds))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Leaver, float, RollBack | None, Arriving | None]:
    needed_s = draw(some_s)
    left_s = draw(st.floats(-5.0, 1e4) | st.floats(0.3, 3.0).map(lambda share: share * needed_s))
    back = draw(st.none() | roll_backs())
    cut = draw(st.none() | st.builds(Arriving, seconds, roll_backs())) if back else None
    return Leaver("n1", left_s, 10_000_000, needed_s), needed_s * draw(st.floats(1.0, 3.0)), back, cut


# -- the chance ---------------------------------------------------------------------------------------------


@stable
@given(some_s, st.floats(-1.0, 1e5), st.floats(1.1, 10.0))
def test_the_chance_grows_with_the_time_from_none_to_certainty(
    needed_s: float, left_s: float, margin: float
) -> None:
    p = chance(needed_s, left_s, margin)
    assert 0.0 <= p <= 1.0
    assert chance(needed_s, left_s * 1.1 if left_s > 0 else left_s, margin) >= p
    assert (p == 1.0) == (left_s >= margin * needed_s) or p > 1 - 1e-9
    assert chance(needed_s, needed_s, margin) == pytest.approx(0.5)
    assert chance(needed_s, needed_s / margin * 0.999, margin) == 0.0
    assert chance(0.0, left_s, margin) == 1.0


@stable
@given(some_s, st.floats(0.51, 1.99))
def test_the_chance_is_that_of_a_rate_known_to_a_factor(needed_s: float, share: float) -> None:
    """Against counting: the factor's logarithm is evenly spread over -ln 2 .. ln 2."""
    n = 2000
    factors = [math.exp(math.log(MARGIN) * (2 * (i + 0.5) / n - 1)) for i in range(n)]
    counted = sum(needed_s * factor <= share * needed_s for factor in factors) / n
    assert chance(needed_s, share * needed_s) == pytest.approx(counted, abs=2 / n)


# -- the way ------------------------------------------------------------------------------------------------


@stable
@given(cases())
def test_the_way_that_is_expected_to_cost_the_least(
    case: tuple[Leaver, float, RollBack | None, Arriving | None],
) -> None:
    pressed, move_s, back, cut = case
    verdict = judge_notice(pressed, move_s, back, cut)
    p, left_s = pressed.chance(), max(0.0, pressed.left_s)
    assert verdict.reason.startswith("n1 goes in ")
    if p == 1.0:
        assert verdict.way is Way.MOVE  # long enough: nothing is done again, whatever it costs
    elif back is None:
        assert verdict.way is Way.MOVE
    elif back.seconds is None:
        assert verdict.way is (Way.ROLL_BACK if p == 0.0 else Way.MOVE)
    else:
        # Brute force: many worlds, in each of which the links have a rate of their own.
        fits = p * move_s + (1 - p) * (left_s + back.seconds)
        costs = {Way.MOVE: fits, Way.ROLL_BACK: back.seconds}
        if cut is not None and cut.roll_back.seconds is not None:
            q = chance(cut.remaining_s, pressed.left_s)
            arrived = cut.remaining_s + cut.roll_back.seconds
            costs[Way.FINISH_CUT] = q * arrived + (1 - q) * (left_s + back.seconds)
        assert costs[verdict.way] == pytest.approx(min(costs.values()))
        assert verdict.expected_s == pytest.approx(costs)
        if p == 0.0:
            assert verdict.way is not Way.MOVE  # it would cost what is left as well


def test_a_cut_that_is_about_to_arrive_is_waited_for() -> None:
    pressed = Leaver("t3", 4.0, 400_000_000, 20.0)
    back = RollBack(100, 30, 30.0, 2.0)
    cut = Arriving(1.5, RollBack(120, 10, 10.0, 2.0))
    verdict = judge_notice(pressed, 20.0, back, cut)
    assert verdict.way is Way.FINISH_CUT
    assert verdict.expected_s[Way.FINISH_CUT] == pytest.approx(13.5)
    assert verdict.reason == (
        "t3 goes in 4 s, and its 400 MB take about 20 s: the cut at clock 120 arrives first "
        "(expected: finish cut 13.5 s, roll back 32 s, move 36 s)"
    )
    assert judge_notice(pressed, 20.0, back, replace(cut, remaining_s=25.0)).way is Way.ROLL_BACK


def test_every_reason_has_its_numbers() -> None:
    pressed = Leaver("t3", 2.0, 400_000_000, 8.0)
    back = RollBack(100, 6, 3.0, 0.1)
    assert judge_notice(pressed, 8.0, back).reason == (
        "t3 goes in 2 s, and its 400 MB take about 8 s: back to clock 100 at once, 6 clocks again "
        "(expected: roll back 3.1 s, move 5.1 s)"
    )
    assert "long enough" in judge_notice(replace(pressed, left_s=16.0), 8.0, back).reason
    assert (
        "moved all the same"
        in judge_notice(replace(pressed, left_s=7.9), 8.0, replace(back, redo_s=60.0)).reason
    )
    assert "nowhere else" in judge_notice(pressed, 8.0, None).reason
    assert (
        "not known yet" in judge_notice(replace(pressed, left_s=7.0), 8.0, replace(back, redo_s=None)).reason
    )


# -- who is pressed -----------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c", "d", "e"])
moves = st.lists(st.builds(Transfer, names, names, st.integers(0, 10**9)), max_size=12).map(
    lambda found: [t for t in found if t.source != t.to]
)


@stable
@given(moves, st.dictionaries(st.sampled_from(["a", "b"]), st.floats(-1.0, 100.0)), st.floats(1e3, 1e9))
def test_leavers_need_their_links_and_those_of_who_gets_what_they_have(
    moved: list[Transfer], left_s: dict[str, float], rate: float
) -> None:
    found = leavers(moved, left_s, rate)
    busy = through(moved)
    for node, size in busy.items():  # against sums by hand
        sent = sum(t.size_bytes for t in moved if t.source == node)
        assert size == max(sent, sum(t.size_bytes for t in moved if t.to == node))
    assert {leaver.node for leaver in found} == {
        t.source for t in moved if t.source in left_s and t.size_bytes
    }
    for leaver in found:
        assert leaver.size_bytes / rate <= leaver.needed_s * (1 + 1e-9)
        assert leaver.needed_s <= max(busy.values()) / rate * (1 + 1e-9)
        assert leaver.left_s == left_s[leaver.node]
    assert [leaver.chance() for leaver in found] == sorted(leaver.chance() for leaver in found)


def test_who_serves_nothing_is_not_pressed() -> None:
    assert leavers([Transfer("a", "b", 100)], {"c": 0.0}, 1.0) == ()


def test_links_that_hold_nothing_up() -> None:
    (leaver,) = leavers([Transfer("a", "b", 100)], {"a": 0.1}, math.inf)
    assert leaver.chance() == 1.0
    assert re.search("long enough", judge_notice(leaver, 0.0, None).reason)
