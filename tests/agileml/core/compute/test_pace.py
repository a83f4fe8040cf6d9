"""Virtual compute: a machine keeps the pace of the one that it stands for, however late it wakes from its pauses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.compute.pace import MOST_CREDIT_S, Pace

# (units, share of the pace that computing really takes, seconds that the pause lasts too long)
COMPUTATIONS = st.lists(
    st.tuples(st.integers(1, 9), st.floats(0, 1), st.floats(0, MOST_CREDIT_S)), min_size=1, max_size=40
)
SPEEDS = st.floats(0.1, 4)


class Clock:
    """Computes at a pace on a clock of its own; `late_s` after each computation is against the ideal."""

    def __init__(self, pace: Pace) -> None:
        self.pace, self.now_s = pace, 100.0

    def compute(self, units: int, took_s: float, overshoot_s: float = 0.0) -> float:
        """Returns when it was over."""
        self.now_s += took_s
        if (pause_s := self.pace.computed(units, took_s, self.now_s)) > 0:
            self.now_s += pause_s + overshoot_s
            self.pace.paused(pause_s + overshoot_s)
        return self.now_s


@settings(deadline=None, derandomize=True)
@given(COMPUTATIONS, SPEEDS)
def test_late_ends_of_pauses_do_not_add_up(steps: list[tuple[int, float, float]], speed: float) -> None:
    clock, due_s = Clock(Pace(0.01, speed)), 100.0
    for units, share, overshoot_s in steps:
        due_s += units * 0.01 / speed
        late_s = clock.compute(units, share * units * 0.01 / speed, overshoot_s) - due_s
        assert -1e-9 <= late_s <= max(each[2] for each in steps) + 1e-9


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, MOST_CREDIT_S)), min_size=1), st.floats(0.1, 1))
def test_real_training_is_slowed_by_its_own_time(steps: list[tuple[float, float]], speed: float) -> None:
    clock, took_s = Clock(Pace(speed=speed)), 0.0
    for seconds, overshoot_s in steps:
        took_s += seconds
        late_s = clock.compute(3, seconds, overshoot_s) - 100 - took_s / speed
        assert -1e-9 <= late_s <= max(each[1] for each in steps) + 1e-9


def test_a_machine_of_the_usual_speed_never_pauses() -> None:
    clock = Clock(Pace())
    assert clock.compute(4, 0.5) == 100.5
    assert clock.compute(1, 0.0) == 100.5


def test_a_machine_that_cannot_keep_up_catches_up_a_little_only() -> None:
    clock = Clock(Pace(0.01))
    clock.compute(1, 3.0)
    assert clock.compute(100, 0.0) == pytest.approx(103 + 1 - MOST_CREDIT_S)


def test_a_slow_machine_is_itself_again_when_the_fault_is_over() -> None:
    pace = Pace(0.1, speed=0.5)
    clock = Clock(pace)
    pace.slow_down(3.0, until_s=101.0)
    assert clock.compute(1, 0.0) == pytest.approx(100.6)
    assert clock.compute(1, 0.0) == pytest.approx(101.2)  # the fault ends in the middle of it
    assert clock.compute(1, 0.0) == pytest.approx(101.4)


def test_a_speed_may_change_between_two_computations() -> None:
    pace = Pace(0.1)
    clock = Clock(pace)
    assert clock.compute(2, 0.05) == pytest.approx(100.2)
    pace.speed = 0.25
    assert clock.compute(2, 0.05) == pytest.approx(101.0)
