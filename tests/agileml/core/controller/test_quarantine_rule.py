"""The rule of quarantine against one written out by hand, and broken rules, which a small corpus tells apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agileml.core.controller.quarantine import Case, judge_failure
from agileml.core.protocol.messages import Failure
from agileml.events.terms import Task

Judge = Callable[[Case, Sequence[Case], int, bool], bool]  # does the run end?
WORKS = (Task.START, Task.LOAD, Task.COMPUTE, Task.SERVE)
cases = st.builds(
    lambda machine, work, clock, units: Case(machine, Failure("it failed", "", work, clock, units)),
    st.sampled_from(["m1", "m2", "m3"]),
    st.sampled_from(WORKS),
    st.integers(0, 1),
    st.integers(1, 7),  # a set of units, as bits
)


def ends(new: Case, before: Sequence[Case], most: int, is_last: bool) -> bool:
    return judge_failure(new, before, most, is_last_reliable=is_last).ends


def by_hand(new: Case, before: Sequence[Case], most: int, is_last: bool) -> bool:
    """The run ends when another machine failed at the same, when the result would go, or when it is one too many."""
    again = False
    for case in before:
        mine, other = new.failure, case.failure
        if case.machine == new.machine or mine.work != other.work:
            continue
        if mine.work in (Task.START, Task.SERVE):
            again = True
        elif mine.clock == other.clock:
            again = again or any(mine.units >> unit & other.units >> unit & 1 for unit in range(3))
    return again or is_last or len(before) + 1 > most


@given(cases, st.lists(cases, max_size=4), st.integers(0, 4), st.booleans())
def test_the_rule_is_the_one_written_out_by_hand(
    new: Case, before: list[Case], most: int, is_last: bool
) -> None:
    assert ends(new, before, most, is_last) == by_hand(new, before, most, is_last)


def renamed(case: Case) -> Case:
    return replace(case, machine="another")


def at_clock_0(case: Case) -> Case:
    return replace(case, failure=replace(case.failure, clock=0))


def of_one_unit(case: Case) -> Case:
    return replace(case, failure=replace(case.failure, units=1))


BROKEN: dict[str, Judge] = {
    "the same machine twice counts as two": lambda new, before, most, last: ends(
        renamed(new), before, most, last
    ),
    "the clock does not matter": lambda new, before, most, last: ends(
        at_clock_0(new), [at_clock_0(case) for case in before], most, last
    ),
    "the units do not matter": lambda new, before, most, last: ends(
        of_one_unit(new), [of_one_unit(case) for case in before], most, last
    ),
    "failures before are forgotten": lambda new, before, most, last: ends(new, [], most, last),
    "one more than max_failures is survived": lambda new, before, most, last: ends(
        new, before, most + 1, last
    ),
    "the last reliable machine is sent away": lambda new, before, most, last: ends(new, before, most, False),
    "the first failure ends the run": lambda new, before, most, last: True,
}


def corpus() -> list[tuple[Case, list[Case], int, bool]]:
    """Every pair of failures of two machines at two works, clocks and units, with each limit."""
    some = [
        Case(machine, Failure("it failed", "", work, clock, 1 << unit))
        for machine, work, clock, unit in product(("m1", "m2"), (Task.START, Task.COMPUTE), (0, 1), (0, 1))
    ]
    befores: list[list[Case]] = [[], *([each] for each in some)]
    return [
        (new, before, most, last)
        for new, before, most, last in product(some, befores, (0, 1, 3), (False, True))
    ]


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_told_apart(broken: Judge) -> None:
    assert any(broken(*given_) != by_hand(*given_) for given_ in corpus())
    assert all(ends(*given_) == by_hand(*given_) for given_ in corpus())
