"""What a worker spends its time with: every second counts once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.node.time_spent import DOING, Doing, TimeSpent
from agileml.events.run import WorkersSpent
from agileml.events.schema import Logged
from agileml.runs.summary import spent_by_machine, time_spent_s


def spent(times: TimeSpent, now_s: float) -> dict[Doing, float]:
    return {doing: s for doing, s in zip(DOING, times.seconds(now_s), strict=True) if s}


def test_a_clock_of_a_worker() -> None:
    times = TimeSpent()
    times.turn(Doing.PULL, 0, 10.0)
    times.turn(Doing.COMPUTE, 0, 11.0)
    times.turn(Doing.PUSH, 0, 14.0)
    times.turn(Doing.PULL, 1, 14.5)
    assert spent(times, 16.5) == {Doing.PULL: 3.0, Doing.COMPUTE: 3.0, Doing.PUSH: 0.5}


def test_adding_up_counts_while_the_worker_waits_for_it() -> None:
    times = TimeSpent()
    times.turn(Doing.COMPUTE, 0, 10.0)
    times.folded(1.0)  # beside the work: the clock does not wait for it
    times.turn(Doing.PULL, 0, 20.0)
    times.folded(2.0)
    times.folded(1.0)
    assert spent(times, 25.0) == {Doing.COMPUTE: 10.0, Doing.FOLD: 3.0, Doing.PULL: 2.0}


def test_a_wall_clock_that_steps_back_counts_nothing() -> None:
    times = TimeSpent()
    times.turn(Doing.COMPUTE, 0, 10.0)
    times.turn(Doing.PULL, 0, 5.0)
    assert spent(times, 6.0) == {Doing.PULL: 1.0}


STEPS = st.lists(
    st.tuples(st.sampled_from(DOING), st.floats(0, 10), st.floats(0, 1), st.booleans()), min_size=1
)


@settings(deadline=None, derandomize=True)
@given(STEPS)
def test_every_second_counts_once_whenever_one_asks(steps: list[tuple[Doing, float, float, bool]]) -> None:
    times, now_s = TimeSpent(), 100.0
    heard: list[float] = []
    times.on_span = lambda doing, clock, start_s, end_s: heard.append(end_s - start_s)
    for clock, (doing, seconds, folded, asks) in enumerate(steps):
        times.turn(doing, clock, now_s)
        times.folded(folded * seconds)
        now_s += seconds
        if asks:
            assert sum(times.seconds(now_s)) == pytest.approx(now_s - 100.0)
    times.turn(Doing.IDLE, 0, now_s)
    assert sum(times.seconds(now_s)) == pytest.approx(now_s - 100.0)
    assert sum(heard) == pytest.approx(now_s - 100.0)


LOG = [
    Logged(10.0, WorkersSpent({"m0": {"pull": 1.0, "compute": 2.0}, "m1": {"compute": 9.0}})),
    Logged(20.0, WorkersSpent({"m0": {"pull": 2.0, "compute": 4.0}})),  # m1 has left
]


def test_totals_of_a_machine_that_left_stay() -> None:
    assert spent_by_machine(LOG) == {"m0": {"pull": 2.0, "compute": 4.0}, "m1": {"compute": 9.0}}
    assert time_spent_s(LOG) == {"pull": 2.0, "compute": 13.0}
