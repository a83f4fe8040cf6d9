"""The ends of machines' processes, of which the controller is not told at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agileml.core.protocol.inputs import NodeUp
from agileml.driver.process_ends import ProcessEnds
from agileml.events.terms import Tier


def up(name: str) -> NodeUp:
    return NodeUp(name, Tier.RELIABLE, True)


@given(st.lists(st.sampled_from(["it comes up", "it dies"])))
def test_each_machine_that_was_up_is_told_of_once_when_the_next_one_is_up(steps: list[str]) -> None:
    """A chain of processes on one Ray node, each of which dies before or after it has come up."""
    ends, number, is_up = ProcessEnds(), 0, False
    were_up: list[str] = []
    told: list[str] = []
    for step in steps:
        if step == "it dies":
            ends.add(f"r{number}")
            ends.replaced(up(f"r{number}"), f"r{number + 1}", was_up=is_up)
            number, is_up = number + 1, False
        elif not is_up:
            is_up = True
            dead = ends.settled(f"r{number}")
            told += [dead.node] if dead is not None else []
            assert told == were_up
            were_up.append(f"r{number}")


def test_only_the_last_ends_are_kept() -> None:
    ends = ProcessEnds(most=2)
    assert [ends.add(name) for name in "abc"] == [None, None, "a"]
    assert ["a" in ends, "b" in ends, "c" in ends] == [False, True, True]
    assert ends.is_reported("b")
    ends.replaced(up("c"), "d", was_up=True)
    assert not ends.is_reported("c")
    assert ends.settled("d") == up("c")
    assert ends.is_reported("c")
    assert ends.settled("d") is None
