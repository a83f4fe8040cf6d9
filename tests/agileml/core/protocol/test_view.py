"""What a view says of a node."""

from __future__ import annotations

from agileml.core.protocol.view import INITIAL, View

VIEW = View(
    epoch=4,
    stage=2,
    members=("r", "t", "u"),
    owner=("t", "t", "r"),
    backup=("r", "r", "r"),
    share=(("r", 0b0011), ("t", 0b1100)),
    previous=("", "", "r", ""),
    base=5,
    open=((5, (("t", 0b0100), ("u", 0b1000))), (6, (("t", 0b1100),))),
    timeline=2,
    committed=INITIAL,
)


def test_a_view_says_who_has_what():
    assert VIEW.partitions_of("t") == [0, 1]
    assert VIEW.partitions_of("u") == []
    assert VIEW.workers() == ["r", "t"]
    assert VIEW.share_of["t"] == 0b1100
    assert VIEW.open_at[5] == (("t", 0b0100), ("u", 0b1000))


def test_a_machine_that_only_ends_an_open_clock_holds_nothing():
    assert VIEW.holders == {"r", "t"}
    assert (VIEW.last_open("u"), VIEW.last_open("t"), VIEW.last_open("r")) == (5, 6, -1)
