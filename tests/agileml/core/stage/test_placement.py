"""Placement against brute force, and the thesis' own example."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.stage.placement import (
    Machines,
    StageRule,
    deal_slices,
    moves,
    place,
    spread,
    stripe,
)
from tests.thorough import examples

NODES = ["a", "b", "c", "d", "e"]
NOBODY = ""


def is_balanced(assigned, nodes):
    loads = [Counter(assigned)[node] for node in nodes]
    return sum(loads) == len(assigned) and max(loads) - min(loads) <= 1


@settings(deadline=None, derandomize=True, max_examples=examples(150))
@given(
    current=st.lists(st.sampled_from([*NODES, NOBODY]), max_size=5),
    nodes=st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique=True),
)
def test_no_balanced_assignment_moves_fewer(current, nodes):
    found, striped = spread(current, nodes), stripe(current, nodes)
    assert is_balanced(found, nodes)
    assert is_balanced(striped, nodes)
    fewest = min(
        moves(current, tried) for tried in product(nodes, repeat=len(current)) if is_balanced(tried, nodes)
    )
    assert moves(current, found) == moves(current, striped) == fewest


@settings(deadline=None, derandomize=True, max_examples=examples(200))
@given(data=st.data())
def test_balanced_at_any_size_and_does_nothing_twice(data):
    nodes = data.draw(
        st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=20, unique=True)
    )
    current = data.draw(st.lists(st.sampled_from([*nodes, "gone"]), max_size=200))
    for assign in (spread, stripe):
        found = assign(current, nodes)
        assert is_balanced(found, nodes)
        assert assign(found, nodes) == found


def test_runs_and_stripes():
    nobody = (NOBODY,) * 8
    assert "".join(spread(nobody, ["a", "b", "c"])) == "aaabbbcc"
    assert "".join(stripe(nobody, ["a", "b", "c"])) == "abcabcab"
    assert "".join(stripe(tuple("abababab"), ["a", "b", "c", "d"])) == "abcdabcd"
    assert "".join(stripe(tuple("abcdabcd"), ["a", "b"])) == "ababab" + "ab"


def test_figure_4_4_of_the_thesis():
    """40 items on machines 1 and 2; 3 and 4 join; 1 and 2 are evicted: nothing is loaded that was not there."""
    worker, previous = ("1",) * 20 + ("2",) * 20, (NOBODY,) * 40
    loaded = {node: {i for i, w in enumerate(worker) if w == node} for node in "12"} | {
        "3": set(),
        "4": set(),
    }

    joined, before = deal_slices(worker, previous, ["1", "2", "3", "4"])
    assert Counter(joined) == {"1": 10, "2": 10, "3": 10, "4": 10}
    moved = [i for i in range(40) if joined[i] != worker[i]]
    assert len(moved) == 20
    assert all(before[i] == worker[i] for i in moved), "who gave it up still has it"
    assert all(before[i] == NOBODY for i in range(40) if i not in moved)

    # 3 is evicted again: its items go back to whoever still has them.
    for i, node in enumerate(joined):
        loaded[node].add(i)
    left, _ = deal_slices(joined, before, ["1", "2", "4"])
    got = [i for i in range(40) if left[i] == "1" and joined[i] != "1"]
    assert got and set(got) <= loaded["1"], "what machine 1 gets it has loaded"

    # 1 and 2 are evicted: 3 and 4 work on 20 each.
    evicted, _ = deal_slices(joined, before, ["3", "4"])
    assert Counter(evicted) == {"3": 20, "4": 20}
    assert all(evicted[i] == joined[i] for i in range(40) if joined[i] in "34")


@settings(deadline=None, derandomize=True, max_examples=examples(200))
@given(data=st.data())
def test_dealt_slices_are_balanced_and_a_previous_owner_is_a_worker_but_never_the_present_one(data):
    workers = data.draw(st.lists(st.sampled_from(NODES), min_size=1, unique=True))
    size = data.draw(st.integers(1, 32))
    anybody = st.sampled_from([*NODES, NOBODY])
    current = data.draw(st.lists(anybody, min_size=size, max_size=size))
    previous = data.draw(st.lists(anybody, min_size=size, max_size=size))
    dealt, before = deal_slices(current, previous, workers)
    assert is_balanced(dealt, workers)
    for slice_index in range(size):
        assert before[slice_index] in {*workers, NOBODY}
        if current[slice_index] != dealt[slice_index] and current[slice_index] in workers:
            assert before[slice_index] == current[slice_index]
            assert before[slice_index] != dealt[slice_index]


def test_an_orphan_goes_to_its_previous_owner():
    current, previous = ("a", "b", "gone", "gone"), (NOBODY, NOBODY, "b", "a")
    assert deal_slices(current, previous, ["a", "b"])[0] == ("a", "b", "b", "a")


def test_every_stage_rule_says_why():
    rule = StageRule((1.0, 15.0))
    assert rule.stage(2, 0) == (1, "no transient machine to serve or work")
    assert rule.stage(2, 2) == (1, "2 transient to 2 reliable is at most 1:1")
    assert rule.stage(2, 3) == (2, "3 transient to 2 reliable is over 1:1 and at most 15:1")
    assert rule.stage(2, 30)[0] == 2
    assert rule.stage(2, 31) == (3, "31 transient to 2 reliable is over 15:1")
    assert StageRule(forced=3).stage(1, 1) == (3, "stage 3 is set (1 transient to 1 reliable)")
    assert StageRule(forced=3).stage(1, 0)[0] == 1, "without transient machines there is no other stage"


def test_half_of_the_transient_machines_serve_the_longest_running_first():
    nobody, slices = (NOBODY,) * 4, (NOBODY,) * 8
    rule = StageRule((1.0, 15.0), active_fraction=0.5)
    first = place(Machines(("r",), ("t1", "t2", "t3", "t4")), rule, nobody, nobody, slices, slices)
    assert first.stage == 2
    assert set(first.owner) == {"t1", "t2"}
    assert set(first.backup) == {"r"}
    assert set(first.worker) == {"r", "t1", "t2", "t3", "t4"}
    # t1 goes: t2 keeps what it has, the next one in age takes over.
    machines = Machines(("r",), ("t2", "t3", "t4"))
    second = place(machines, rule, first.owner, first.backup, first.worker, first.previous)
    assert set(second.owner) == {"t2", "t3"}
    assert moves(first.owner, second.owner) == 2


def test_stage_1_serves_where_the_backups_are_and_stage_3_works_on_transient_machines_only():
    nobody, slices = (NOBODY,) * 4, (NOBODY,) * 8
    one = place(Machines(("r", "s"), ("t",)), StageRule(), nobody, nobody, slices, slices)
    assert one.stage == 1
    assert one.owner == one.backup
    three = place(
        Machines(("r", "s"), ("t",)), StageRule(forced=3), one.owner, one.backup, one.worker, slices
    )
    assert set(three.worker) == {"t"} == set(three.owner)
    assert three.backup == one.backup


@settings(deadline=None, derandomize=True, max_examples=examples(150))
@given(data=st.data())
def test_any_arrangement_is_complete_and_stays_as_it_is_while_nothing_changes(data):
    machines = Machines(
        tuple(f"r{i}" for i in range(data.draw(st.integers(1, 3)))),
        tuple(f"t{i}" for i in range(data.draw(st.integers(0, 8)))),
    )
    forced = data.draw(st.sampled_from([None, 1, 2, 3]))
    rule = StageRule((1.0, 3.0), forced, data.draw(st.sampled_from([0.25, 0.5, 1.0])))
    partitions, slices = data.draw(st.integers(1, 8)), 16
    anybody = st.sampled_from(["r0", "r1", "t0", "t1", "gone", NOBODY])
    draw = lambda n: data.draw(st.lists(anybody, min_size=n, max_size=n))  # noqa: E731
    found = place(machines, rule, draw(partitions), draw(partitions), draw(slices), draw(slices))
    everyone = {*machines.reliable, *machines.transient}
    assert {*found.owner, *found.worker} <= everyone
    assert set(found.backup) <= set(machines.reliable)
    again = place(machines, rule, found.owner, found.backup, found.worker, found.previous)
    assert (again.owner, again.backup, again.worker) == (found.owner, found.backup, found.worker)
