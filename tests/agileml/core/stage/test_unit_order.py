"""The lists of the machines of a clock: whole, in an order that no two machines wait for, and as before without
replicas."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.protocol.view import StageGroup
from agileml.core.stage.unit_order import UnitAction, clock_lists, order_of_units
from pipeline.schedule.actions import Kind
from pipeline.schedule.policies import flush
from straggler.coverage import members, span
from tests.thorough import examples

UNITS = 16


def stage(number: int, counts: list[int]) -> StageGroup:
    """A stage of one partition whose replicas have so many units each."""
    edges = pairwise(accumulate(counts, initial=0))
    names = (f"{number}.{place}" for place in range(len(counts)))
    return StageGroup(
        number, number + 1, tuple((n, span(a, b)) for n, (a, b) in zip(names, edges, strict=False))
    )


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[StageGroup, ...]:
    found = []
    for number in range(draw(st.integers(1, 4))):
        cuts = sorted(draw(st.sets(st.integers(1, UNITS - 1), max_size=4)))
        found.append(stage(number, [b - a for a, b in pairwise((0, *cuts, UNITS))]))
    return tuple(found)


@settings(deadline=None, max_examples=examples(200))
@given(pipelines(), st.integers(1, (1 << UNITS) - 1), st.booleans())
def test_every_machine_gets_through_its_list(
    stages: tuple[StageGroup, ...], units: int, puts_off: bool
) -> None:
    lists = {node: list(actions) for node, actions in clock_lists(stages, units, puts_off=puts_off).items()}
    for each in stages:
        for node, own in each.replicas:
            done = [action.unit for action in lists.get(node, ()) if action.kind is Kind.FORWARD]
            assert sorted(done) == list(members(own & units))
    done: set[tuple[int, UnitAction]] = set()
    while any(lists.values()):
        before = len(done)
        for number, each in enumerate(stages):
            for node in each.machines:
                while lists.get(node) and may_run(number, lists[node][0], done, len(stages)):
                    done.add((number, lists[node].pop(0)))
        assert len(done) > before, "machines wait for each other"


def may_run(at: int, action: UnitAction, done: set[tuple[int, UnitAction]], stages: int) -> bool:
    """True when what an action needs has been computed."""
    forward, backward = UnitAction(Kind.FORWARD, action.unit), UnitAction(Kind.BACKWARD, action.unit)
    if action.kind is Kind.FORWARD:
        return at == 0 or (at - 1, forward) in done
    if action.kind is Kind.WEIGHTS:
        return (at, backward) in done
    return (at, forward) in done and (at == stages - 1 or (at + 1, backward) in done)


@given(st.integers(1, 4), st.booleans())
def test_without_replicas_they_are_the_lists_of_the_flush(stages: int, puts_off: bool) -> None:
    groups = tuple(stage(number, [UNITS]) for number in range(stages))
    found = clock_lists(groups, span(0, UNITS), puts_off=puts_off)
    wanted = flush((1,) * stages, UNITS, UNITS, zero_bubble=puts_off).workers
    for number, actions in enumerate(wanted):
        assert found[f"{number}.0"] == tuple(UnitAction(a.kind, a.minibatch - 1) for a in actions)


def test_replicas_take_turns_and_each_goes_from_its_first_unit_to_its_last() -> None:
    stages = stage(0, [8, 8]), stage(1, [16])
    assert order_of_units(stages, span(0, 16))[:6] == [0, 8, 1, 9, 2, 10]
    assert order_of_units(stages, 0b1100000011) == [0, 8, 1, 9]
    lists = clock_lists(stages, span(0, 16), puts_off=False)
    assert [a.unit for a in lists["0.1"] if a.kind is Kind.BACKWARD] == list(range(8, 16))
