"""Shares by weight: right for the weights, and with as few moves as can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agileml.core.change.change_plan import plan_change
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Promise, ShardState
from agileml.core.protocol.view import INITIAL, View
from agileml.core.stage.placement import Machines, StageRule
from agileml.core.stage.shares import counts_by_weight
from tests.agileml.core.fixtures import make_job
from tests.model.invariants import check_view
from tests.model.plans import RandomPlans

JOB = make_job(slices=16, parts=16, partitions=1)  # 256 units
NAMES = tuple("abcdefgh")
RULE = StageRule(forced=1)


def view_of(machines: Sequence[str], weights: Mapping[str, float], job=JOB) -> View:
    return plan_change(job, RULE, 1, None, INITIAL, {}, Machines(tuple(machines), (), weights)).view


def changed(view: View, machines: Sequence[str], weights: Mapping[str, float], job=JOB) -> View:
    promise = Promise(2, ((0, ShardState(0, ())),), (), ())
    promises = {view.owner[0]: promise}
    after = plan_change(job, RULE, 2, view, INITIAL, promises, Machines(tuple(machines), (), weights)).view
    check_view(job, after)
    return after


def counts(view: View) -> dict[str, int]:
    return {node: units.bit_count() for node, units in view.share}


def moved(before: View, after: View) -> int:
    """Units that a machine has and did not have before."""
    had = dict(before.share)
    return sum((units & ~had.get(node, 0)).bit_count() for node, units in after.share)


def test_shares_are_in_proportion_to_the_cores() -> None:
    view = view_of("abcd", {"a": 4.0, "b": 4.0, "c": 8.0, "d": 36.0})
    check_view(JOB, view)
    assert counts(view) == {"a": 19, "b": 19, "c": 39, "d": 179}


def test_equal_machines_share_whole_slices_as_ever() -> None:
    even = dict.fromkeys("abc", 4.0)
    assert view_of("abc", even) == view_of("abc", {})
    assert set(counts(view_of("abc", even)).values()) == {80, 96}


def test_with_plans_even_equal_machines_share_units() -> None:
    job = replace(JOB, balancer=lambda units, home: RandomPlans(units, home, None, None))
    assert sorted(counts(view_of("abc", {}, job)).values()) == [85, 85, 86]


def test_where_machines_count_as_alike_plans_begin_with_whole_slices() -> None:
    job = replace(JOB, balancer=lambda units, home: RandomPlans(units, home, None, None), alike=1.25)
    assert view_of("abc", {}, job) == view_of("abc", {})
    assert counts(view_of("ab", {"a": 1.0, "b": 3.0}, job)) == {"a": 64, "b": 192}


@pytest.mark.parametrize("weights", [{}, dict(zip(NAMES, (1, 2, 3, 4, 4, 2, 8, 1), strict=True))])
@pytest.mark.parametrize("name", NAMES[1:])
def test_one_machine_of_eight_that_goes_or_comes_moves_its_own_units_alone(
    weights: Mapping[str, float], name: str
) -> None:
    rest = [n for n in NAMES if n != name]
    before = view_of(NAMES, weights)
    gone = changed(before, rest, weights)
    assert moved(before, gone) == counts(before)[name]
    fewer = view_of(rest, weights)
    joined = changed(fewer, [*rest, name], weights)
    assert moved(fewer, joined) == counts(joined)[name]


def test_weights_that_differ_little_from_the_share_move_nothing_more() -> None:
    before = view_of("abcd", {"a": 1.0, "b": 2.0, "c": 2.0, "d": 3.0})
    assert counts(before) == {"a": 32, "b": 64, "c": 64, "d": 96}
    after = changed(before, "abd", {"a": 1.06, "b": 1.95, "d": 3.1})
    assert counts(after) == {"a": 42, "b": 85, "d": 129}
    assert moved(before, after) == 64
    slower = changed(before, "abd", {"a": 1.0, "b": 2.0, "d": 1.5})
    assert counts(slower) == {"a": 57, "b": 114, "d": 85}


def test_a_machine_that_is_gone_leaves_its_units_to_whom_it_had_them_from() -> None:
    weights = {"a": 2.0, "b": 1.0, "c": 1.0}
    alone = view_of("ab", weights)
    joined = changed(alone, "abc", weights)
    back = changed(replace(joined, epoch=1), "ab", weights)
    assert dict(back.share) == dict(alone.share)


@given(st.data())
def test_counts_by_weight_are_the_best_and_move_the_least_of_the_best(data: st.DataObject) -> None:
    workers = data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    weights = {worker: data.draw(st.integers(1, 5)) / 2 for worker in workers}
    total = data.draw(st.integers(len(workers), 12))
    held = {worker: data.draw(st.integers(0, total)) for worker in workers}
    found = counts_by_weight(total, weights, held)
    assert sum(found.values()) == total
    assert min(found.values()) >= 1
    longest = max(found[w] / weights[w] for w in workers)
    for cuts in combinations(range(1, total), len(workers) - 1):
        other = [b - a for a, b in zip((0, *cuts), (*cuts, total), strict=True)]
        assert longest <= max(n / weights[w] for w, n in zip(workers, other, strict=True)) + 1e-12


def test_machines_that_went_cost_no_look_at_all_slices_each() -> None:
    looked = []

    class Counted(tuple[str, ...]):
        def __iter__(self) -> Iterator[str]:
            looked.append(len(self))
            return super().__iter__()

    weights = dict(zip(NAMES, (1.0, 2.0, 3.0, 4.0, 4.0, 2.0, 8.0, 1.0), strict=True))
    before = changed(view_of(NAMES[:5], weights), NAMES, weights)  # the last three took slices of the others
    counted = replace(before, previous=Counted(before.previous))
    after = changed(counted, NAMES[:5], weights)
    assert after == changed(before, NAMES[:5], weights)
    assert len(looked) == 3  # twice to deal, and to remember


SPEEDS = {"a": 1.0, "b": 0.83, "c": 0.47, "d": 0.61}


def planned(mode: str, *, deterministic: bool = True) -> Job:
    job = make_job(mode, slices=16, parts=16, partitions=1)
    make = lambda units, home, _: RandomPlans(units, home, None, Counter())  # noqa: E731
    return replace(job, balancer=make, deterministic=deterministic)


def test_where_sums_are_as_large_as_the_parameters_plans_start_from_shares_of_few_sums() -> None:
    job = planned("dense")
    found = counts(view_of("abcd", SPEEDS, job))
    assert not any(units % 4 for units in found.values()), "of 64 units on average, 16 steps"
    best = counts_by_weight(256, SPEEDS, {})
    assert all(abs(found[name] - best[name]) <= 6 for name in "abcd")
    after = changed(view_of("abcd", SPEEDS, job), "abce", SPEEDS | {"e": 0.3}, job)
    assert not any(units % 4 for units in counts(after).values())


@pytest.mark.parametrize("job", [planned("bsp"), planned("dense", deterministic=False)])
def test_elsewhere_they_start_from_the_best_shares(job: Job) -> None:
    assert counts(view_of("abcd", SPEEDS, job)) == counts_by_weight(256, SPEEDS, {})
