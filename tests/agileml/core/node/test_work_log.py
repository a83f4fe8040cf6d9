"""The work of a machine by clock: windows without gaps, few of them, and every unit and second in one of them."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.node.time_spent import Doing, TimeSpent
from agileml.core.node.work_log import FINE, WorkLog, WorkRow, window
from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.commands import Computed


def test_windows_follow_each_other_and_grow() -> None:
    at, count = 0, 0
    while at < 100_000:
        first, length = window(at)
        assert first == at and length & (length - 1) == 0
        assert length == 1 if at < FINE else length <= at / FINE + 1
        assert window(at + length - 1) == (first, length)
        at, count = at + length, count + 1
    assert count <= FINE * math.log2(2 + 100_000 / FINE)


# (is another clock, units, seconds of computing, seconds of waiting)
STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.floats(0, 9), st.floats(0, 9)), min_size=1)


@settings(deadline=None, derandomize=True)
@given(STEPS, st.integers(0, 50), st.integers(0, 200))
def test_every_unit_and_second_of_computing_is_in_the_window_of_its_clock(
    steps: list[tuple[bool, int, float, float]], base: int, ahead: int
) -> None:
    log, clock = WorkLog(), base + ahead
    log.begin_view(7, base)
    expected: dict[tuple[int, int], list[float]] = {}
    for is_next, units, compute_s, wait_s in steps:
        clock += is_next
        log.computes(clock)
        log.spent(compute_s, 0.0)
        log.computed(units)
        log.spent(0.0, wait_s)
        first, length = window(clock - base)
        sums = expected.setdefault((base + first, length), [0, 0.0, 0.0])
        for index, value in enumerate((units, compute_s, wait_s)):
            sums[index] += value
    log.close()
    assert log.take() == tuple(WorkRow(7, *key, *sums) for key, sums in expected.items())
    assert log.take() == ()


THREE = Computed(0, 0, 0b111, ((0, Contribution(())), (1, Contribution(()))))


def test_waiting_is_that_after_a_clock_and_a_change_belongs_to_nobody() -> None:
    times = TimeSpent()
    times.turn(Doing.PULL, 0, 10.0)
    times.begin_view(1, 0, 10.0)
    times.turn(Doing.COMPUTE, 0, 12.0)  # two seconds for the first parameters
    times.computed(THREE)
    times.computed(Computed(0, 0, 0b111, ((2, Contribution(())),)))  # another partition of the same
    times.turn(Doing.PUSH, 0, 15.0)
    times.turn(Doing.PULL, 1, 15.5)
    times.turn(Doing.COMPUTE, 1, 17.0)
    times.begin_view(2, 1, 18.0)  # in the middle of a computation
    times.computed(THREE)
    times.turn(Doing.FROZEN, 1, 19.0)
    times.turn(Doing.PULL, 1, 23.0)
    times.turn(Doing.IDLE, 2, 24.0)
    assert times.log.take() == (
        WorkRow(1, 0, 1, 3, 3.0, 2.0),
        WorkRow(1, 1, 1, 0, 1.0, 0.0),
        WorkRow(2, 1, 1, 3, 1.0, 1.0),
    )
    assert times.units == 6
