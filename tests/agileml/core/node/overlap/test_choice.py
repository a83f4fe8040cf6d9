"""`overlap: auto`: what a machine measures and what it makes of it."""

from __future__ import annotations

import pytest

from agileml.core.node.overlap.choice import SETTLE, WINDOW, Chosen, OverlapChoice

ALL = frozenset("ab")


class Clocks:
    """Clocks of a machine that last as long as the test says, with overlap and without."""

    def __init__(self, without_s: float, wait_s: float, with_s: float) -> None:
        self.without_s, self.wait_s, self.with_s = without_s, wait_s, with_s
        self.choice = OverlapChoice()
        self.choice.begin_view(ALL)
        self.clock, self.now_s, self.waited_s = 0, 100.0, 0.0
        self.found: list[Chosen] = []

    def go(self, clocks: int) -> None:
        for _ in range(clocks):
            chosen = self.choice.reached(self.clock, self.now_s, self.waited_s)
            if chosen is not None:
                self.found.append(chosen)
            self.clock += 1
            self.now_s += self.with_s if self.choice.overlaps else self.without_s
            self.waited_s += self.wait_s


def test_it_is_tried_where_clocks_wait_and_stays_where_they_get_shorter() -> None:
    clocks = Clocks(1.0, 0.4, 0.7)
    clocks.go(60)
    first, second = clocks.found
    assert (first.clock, first.overlaps) == (SETTLE + WINDOW, True)
    assert first.reason == (
        "0.4 s of a clock of 1 s are spent waiting: overlap, which can save up to 0.4 s, is tried"
    )
    assert (second.clock, second.overlaps) == (2 * (SETTLE + WINDOW), True)
    assert second.reason == "a clock takes 0.7 s with overlap and 1 s without: it stays"
    assert clocks.choice.overlaps


@pytest.mark.parametrize("with_s", [0.99, 1.0, 1.2])
def test_it_is_given_up_where_it_does_not_pay(with_s: float) -> None:
    clocks = Clocks(1.0, 0.4, with_s)
    clocks.go(60)
    assert [chosen.overlaps for chosen in clocks.found] == [True, False]
    assert clocks.found[1].reason.endswith("it is given up")
    assert not clocks.choice.overlaps


@pytest.mark.parametrize("wait_s", [0.0, 0.01, 0.99, 1.0], ids=["none", "little", "nearly all", "all"])
def test_it_is_not_even_tried_where_one_side_rules(wait_s: float) -> None:
    clocks = Clocks(1.0, wait_s, 0.5)
    clocks.go(60)
    (only,) = clocks.found
    assert not only.overlaps
    assert "can save" in only.reason


def test_other_members_are_measured_anew_and_the_same_ones_are_not() -> None:
    clocks = Clocks(1.0, 0.4, 0.7)
    clocks.go(30)
    clocks.choice.begin_view(ALL)
    clocks.go(30)
    assert len(clocks.found) == 2 and clocks.choice.overlaps
    clocks.choice.begin_view(ALL | {"c"})
    assert not clocks.choice.overlaps
    clocks.go(30)
    assert len(clocks.found) == 4


def test_a_change_of_members_in_the_middle_spoils_no_measurement() -> None:
    clocks = Clocks(1.0, 0.4, 0.7)
    clocks.go(5)
    clocks.now_s += 100
    clocks.choice.begin_view(ALL)
    clocks.go(40)
    assert clocks.found[0].reason.startswith("0.4 s of a clock of 1 s")
