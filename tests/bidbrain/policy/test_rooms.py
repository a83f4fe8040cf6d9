"""Pools that gave less than was asked count as full for an hour."""

from bidbrain.history.prices import Market
from bidbrain.policy.rooms import FULL_S, Rooms

A, B = Market("node", "us-east-1a"), Market("node", "us-west-2a")


def test_a_pool_that_gave_less_than_was_asked_is_full_for_an_hour() -> None:
    rooms = Rooms()
    rooms.look(0, {A: 4})
    rooms.ask(A, 8)
    rooms.ask(B, 8)
    rooms.look(300, {A: 12, B: 3})
    assert (rooms.new(A, 16), rooms.new(B, 16)) == (16, 0)
    rooms.look(300 + FULL_S - 1, {A: 12, B: 3})
    assert rooms.new(B, 16) == 0
    rooms.look(300 + FULL_S, {A: 12, B: 3})
    assert rooms.new(B, 16) == 16


def test_what_was_not_asked_at_the_last_decision_says_nothing() -> None:
    rooms = Rooms()
    rooms.look(0, {})
    rooms.ask(A, 8)
    rooms.look(300, {A: 8})
    rooms.look(600, {A: 2})
    assert rooms.new(A, 16) == 16
