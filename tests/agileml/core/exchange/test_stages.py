"""What stages say to each other: sent again until answered, dropped at a change, nothing of an older epoch taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agileml.application import Wire
from agileml.core.compute.cursor import Cursor
from agileml.core.exchange.stages import StageLinks
from agileml.core.node.worker import Worker
from agileml.core.protocol.commands import Arrange, Crossed, PassOn
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.messages import Crossing, CrossingAck
from agileml.core.protocol.view import INITIAL, StageGroup, View
from agileml.core.stage.walk import Awaited
from agileml.process.compute import Aborted
from agileml.process.stage_thread import Mailbox
from tests.agileml.core.fixtures import make_job

STAGES = (StageGroup(0, 2, (("a", 15),)), StageGroup(2, 4, (("b", 3), ("c", 12))))


def view(epoch: int) -> View:
    return View(
        epoch,
        3,
        ("r", "a", "b", "c"),
        ("a", "a", "b", "c"),
        ("r",) * 4,
        (("a", 1),),
        ("",),
        0,
        ((0, (("a", 0b0011), ("a", 0b1000))),),
        1,
        INITIAL,
        pipeline=STAGES,
    )


def crossing(epoch: int = 2, clock: int = 5, unit: int = 0, is_forward: bool = True) -> Crossing:
    return Crossing(epoch, clock, unit, is_forward, (Wire(np.ones(2, np.float32), (1,)),))


class Rig:
    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.asked: list[Any] = []
        send, ask = lambda *sent: self.sent.append(sent), self.asked.append
        io = NodeIo("a", make_job(), send, ask)
        worker = Worker(io)
        self.links = StageLinks(io, worker, None)  # type: ignore[arg-type]
        self.links.adopt(view(2))

    def repeated(self) -> list[tuple[str, Any]]:
        self.sent.clear()
        self.links.resend()
        return list(self.sent)


def test_the_computation_hears_of_the_stages_and_of_what_is_open() -> None:
    assert Rig().asked == [Arrange(2, STAGES, ((0, 0b1011),))]


def test_a_crossing_is_repeated_until_it_is_answered() -> None:
    rig, message = Rig(), crossing()
    rig.links.crossed(Crossed("b", message))
    assert rig.sent == [("b", message)]
    assert rig.repeated() == [("b", message)]
    rig.links.crossing("b", CrossingAck(2, 5, 1, True))  # of another unit
    assert rig.repeated() == [("b", message)]
    rig.links.crossing("b", CrossingAck(2, 5, 0, True))
    assert rig.repeated() == []


def test_a_change_ends_what_was_on_its_way_and_what_is_late_is_not_sent() -> None:
    rig = Rig()
    rig.links.crossed(Crossed("b", crossing()))
    rig.links.prepare()
    assert rig.repeated() == []
    rig.links.adopt(view(3))
    rig.links.crossed(Crossed("b", crossing(epoch=2)))
    assert rig.sent == []


def test_what_comes_is_answered_and_passed_on_also_twice() -> None:
    rig, message = Rig(), crossing(is_forward=False)
    for _ in range(2):
        rig.links.crossing("b", message)
    assert rig.sent == [("b", CrossingAck(2, 5, 0, False))] * 2
    assert rig.asked[1:] == [PassOn(message)] * 2


def test_the_mailbox_gives_each_message_to_its_clock_and_epoch() -> None:
    box, cursor = Mailbox(), Cursor(4)
    early = crossing(epoch=3)
    box.deliver(early)  # before the stages of its epoch are known here
    box.arrange(Arrange(3, STAGES))
    box.deliver(crossing(epoch=2))  # older: dropped
    assert box.take(Awaited(3, 5, 0, True), cursor) is early
    with pytest.raises(Aborted):
        box.stages(2, cursor)
    cursor.abort()
    with pytest.raises(Aborted):
        box.take(Awaited(2, 5, 0, True), cursor)


def test_the_mailbox_forgets_a_clock_that_is_over_and_older_epochs() -> None:
    box = Mailbox()
    box.arrange(Arrange(2, STAGES))
    box.deliver(crossing())
    box.deliver(later := crossing(clock=6))
    box.forget(2, 5)
    assert box.take(Awaited(2, 6, 0, True), Cursor(1)) is later
    box.arrange(Arrange(3, STAGES))
    over = Cursor(1)
    over.abort()
    with pytest.raises(Aborted):
        box.take(Awaited(2, 6, 0, True), over)
    assert replace(later, epoch=3) != later
