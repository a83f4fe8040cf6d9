"""What a shard knows of a clock's norms: what it waits for, what it keeps, and what moves with it."""

from __future__ import annotations

import pytest

from agileml.core.node.shard.clock_sums import ClockSums
from agileml.core.parameters.gradient_norm import norm


def test_a_clock_waits_for_the_squares_of_every_partition_that_it_needs() -> None:
    left, right = ClockSums(0, range(2), 0), ClockSums(1, range(2), 0)
    left.add(0, ((2, 32.0),))
    assert left.of(0) is None
    assert left.missing(0) == [1]
    right.add(0, ((3, 32.0),))
    for clock, sums in right.take_new():
        left.take(clock, 1, sums)
    parts = left.of(0)
    assert parts is not None and norm(parts) == pytest.approx(8.0)
    assert right.take_new() == ()
    alone = ClockSums(5, [5], 0)
    alone.add(0, ((1, 4.0),))
    assert alone.of(0) == [((1, 4.0),)], "whose layers lie in no other"


def test_what_another_partition_may_still_wait_for_is_kept() -> None:
    for slack in (0, 2):
        sums = ClockSums(0, range(2), slack)
        for clock in range(6):
            sums.add(clock, ((1, 1.0),))
            sums.forget(clock + 1)
        assert [clock for clock, _ in sums.kept] == list(range(5 - slack, 6))
        moved = ClockSums(0, range(2), slack, sums.kept)
        assert moved.kept == sums.kept
        assert moved.take_new() == (), "the new owner tells everything with its view"
