"""What a shard knows of a clock's norm: what it waits for, what it keeps, and what moves with it."""

from __future__ import annotations

import numpy as np
import pytest

from agileml.application import Table
from agileml.core.exchange import exchange_of
from agileml.core.node.shard.clock_squares import ClockSquares
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense, Layout
from agileml.core.parameters.optimizer import optimizer
from agileml.core.protocol.job import Job
from straggler.consistency import consistency


def job(slack: int = 0) -> Job:
    return Job(
        layout=Layout((Table("t", 1, 64),), 2),
        optimizer=optimizer("sgd", learning_rate=0.1, clip_norm=1.0),
        consistency=consistency("ssp" if slack else "bsp", slack),
        slices=2,
        parts=1,
        clocks=9,
        deterministic=not slack,
        exchange=exchange_of("servers"),
    )


def gradient(size: float) -> Contribution:
    return Contribution((Dense(np.full(32, size, np.float32)),))


def test_a_clock_waits_for_the_squares_of_every_partition() -> None:
    left, right = ClockSquares(job(), 0), ClockSquares(job(), 1)
    left.add_up(0, gradient(1.0))
    assert left.norm(0) is None
    assert left.missing(0) == [1]
    right.add_up(0, gradient(1.0))
    for clock, sums in right.take_new():
        left.hear(clock, 1, sums)
    assert left.norm(0) == pytest.approx(8.0)
    assert right.take_new() == ()


def test_what_another_partition_may_still_wait_for_is_kept() -> None:
    for slack in (0, 2):
        squares = ClockSquares(job(slack), 0)
        for clock in range(6):
            squares.add_up(clock, gradient(1.0))
            squares.forget(clock + 1)
        assert [clock for clock, _ in squares.kept] == list(range(5 - slack, 6))
        moved = ClockSquares(job(slack), 0, squares.kept)
        assert moved.kept == squares.kept
        assert moved.take_new() == (), "the new owner tells everything with its view"
