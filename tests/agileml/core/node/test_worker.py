"""The worker: what it pulls, computes and pushes, and what it keeps through a change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agileml.core.node.time_spent import Doing
from agileml.core.node.worker import Worker
from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.commands import Begin, Begun, Compute, Computed
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.messages import Ack, Behind, Params, Pull, Push
from agileml.core.protocol.view import INITIAL, View
from tests.agileml.core.fixtures import make_job

VIEW = View(
    epoch=1,
    stage=1,
    members=("a", "b"),
    owner=("a", "b"),
    backup=("a", "b"),
    share=(("w", 0b1111), ("b", 0b11110000)),
    previous=("",) * 8,
    base=0,
    open=(),
    timeline=1,
    committed=INITIAL,
)
ROWS = ((None, None, None),) * 2


class Rig:
    def __init__(self, view=VIEW, mode="bsp"):
        self.sent, self.asked = [], []
        job = make_job(mode, partitions=2)
        self.worker = Worker(NodeIo("w", job, lambda to, m: self.sent.append((to, m)), self.asked.append))
        self.worker.adopt(view)

    def take(self, kind):
        found = [m for _, m in self.sent if isinstance(m, kind)]
        self.sent = [(to, m) for to, m in self.sent if not isinstance(m, kind)]
        return found

    def begin(self):
        """Answer the last Begin and its pulls."""
        begin = [c for c in self.asked if isinstance(c, Begin)][-1]
        self.worker.begun(Begun(begin, ROWS))
        return begin

    def answer_pulls(self, version=None):
        for pull in self.take(Pull):
            at = pull.clock if version is None else version
            self.worker.params(Params(pull.epoch, pull.partition, pull.clock, at, ()))

    def compute(self):
        """Finish what is at work; returns it."""
        command = [c for c in self.asked if isinstance(c, Compute)][-1]
        for bundle in command.bundles:
            both = tuple((p, Contribution(())) for p in range(2))
            self.worker.computed(Computed(command.timeline, command.clock, bundle, both))
        return command

    def ack_all(self):
        for message in self.take(Push):
            self.worker.ack(Ack(message.epoch, message.partition, message.clock, message.bundle))

    def clock(self):
        self.begin()
        self.answer_pulls()
        self.compute()
        self.ack_all()


def test_a_clock_pulls_everywhere_computes_pushes_everywhere_and_goes_on():
    rig = Rig()
    begin = rig.begin()
    assert begin == Begin(timeline=1, clock=0, bundles=(0b1111,))
    assert [(to, m.partition) for to, m in rig.sent] == [("a", 0), ("b", 1)]
    rig.answer_pulls()
    assert rig.compute().bundles == (0b1111,)
    pushed = [(to, m.partition, m.bundle) for to, m in rig.sent if isinstance(m, Push)]
    assert pushed == [("a", 0, 0b1111), ("b", 1, 0b1111)]
    rig.worker.ack(Ack(1, 0, 0, 0b1111))
    assert rig.worker.clock == 0
    rig.worker.ack(Ack(1, 1, 0, 0b1111))
    assert rig.worker.clock == 1


def test_the_bundles_are_aligned_subtrees_where_bits_matter_and_one_sum_elsewhere():
    share = (("w", 0b01111110),)
    assert Rig(replace(VIEW, share=share)).worker.bundles.of(0) == (0b10, 0b1100, 0b110000, 0b1000000)
    assert Rig(replace(VIEW, share=share), "sum").worker.bundles.of(0) == (0b01111110,)


def test_everything_that_is_not_answered_is_repeated():
    rig = Rig()
    rig.begin()
    first = rig.take(Pull)
    rig.worker.resend()
    assert rig.take(Pull) == first
    rig.worker.params(Params(1, 0, 0, 0, ()))
    rig.worker.resend()
    assert [pull.partition for pull in rig.take(Pull)] == [1]
    rig.worker.params(Params(1, 1, 0, 0, ()))
    rig.compute()
    rig.take(Push)
    rig.worker.ack(Ack(1, 1, 0, 0b1111))
    rig.worker.resend()
    assert [push.partition for push in rig.take(Push)] == [0]


def test_the_next_clock_is_asked_for_ahead_and_its_answer_is_an_acknowledgement():
    rig = Rig()
    rig.begin()
    rig.answer_pulls()
    rig.compute()
    assert rig.begin().clock == 1
    assert rig.worker.clock == 0
    rig.answer_pulls(version=1)
    assert rig.worker.clock == 1
    assert [c.clock for c in rig.asked if isinstance(c, Compute)] == [0, 1]


def test_a_worker_that_is_behind_goes_to_the_next_clock():
    rig = Rig()
    rig.begin()
    rig.worker.behind(Behind(1, 0, 0))
    assert rig.worker.clock == 1
    rig.worker.behind(Behind(1, 0, 0))
    assert rig.worker.clock == 1, "it was told twice"


def test_what_is_computed_is_kept_through_a_change_and_pushed_under_the_new_epoch():
    rig = Rig()
    rig.begin()
    rig.answer_pulls()
    rig.compute()
    rig.take(Push)
    rig.worker.ack(Ack(1, 0, 0, 0b1111))
    asked = len([c for c in rig.asked if isinstance(c, Compute)])
    rig.worker.adopt(replace(VIEW, epoch=2, open=((0, (("w", 0b1111), ("b", 0b11110000))),)))
    assert [(m.epoch, m.partition) for m in rig.take(Push)] == [(2, 1)], "partition 0 has it already"
    assert len([c for c in rig.asked if isinstance(c, Compute)]) == asked


def test_what_is_being_computed_goes_on_through_a_change():
    rig = Rig()
    rig.begin()
    rig.answer_pulls()
    rig.worker.adopt(replace(VIEW, epoch=2, open=((0, (("w", 0b1111),)),)))
    assert len([c for c in rig.asked if isinstance(c, Begin)]) == 1
    rig.compute()
    assert {(m.epoch, m.partition) for m in rig.take(Push)} == {(2, 0), (2, 1)}


def test_a_rollback_drops_it():
    rig = Rig()
    rig.clock()
    rig.begin()
    rig.answer_pulls()
    old = [c for c in rig.asked if isinstance(c, Compute)][-1]
    rig.worker.adopt(replace(VIEW, epoch=2, timeline=2))
    assert rig.worker.clock == 0
    both = tuple((p, Contribution(())) for p in range(2))
    rig.take(Push)
    rig.worker.computed(Computed(1, old.clock, old.bundles[0], both))
    assert rig.take(Push) == []
    assert [c for c in rig.asked if isinstance(c, Begin)][-1] == Begin(2, 0, (0b1111,))


def test_open_clocks_come_first_and_empty_ones_are_skipped():
    open_clocks = ((3, (("b", 0b1),)), (4, (("w", 0b10),)))
    rig = Rig(replace(VIEW, base=3, open=open_clocks))
    assert rig.begin() == Begin(1, 4, (0b10,))


@pytest.mark.parametrize("base", [20, 25])
def test_nothing_is_computed_after_the_last_clock(base):
    assert Rig(replace(VIEW, base=base)).asked == []


def test_a_machine_without_work_asks_for_nothing():
    rig = Rig(replace(VIEW, share=(("b", 0xFF),)))
    assert (rig.asked, rig.sent) == ([], [])


def test_what_was_read_of_the_next_clock_is_not_read_again_after_a_change():
    rig = Rig()
    rig.begin()
    rig.answer_pulls()
    rig.compute()
    rig.begin()  # of clock 1, which is asked for ahead
    rig.take(Pull)
    blocks = (np.arange(3.0), np.arange(4.0), np.arange(5.0))
    rig.worker.params(Params(1, 0, 1, 1, blocks))
    rig.worker.adopt(replace(VIEW, epoch=2, owner=("b", "b")))
    assert [m.partition for m in rig.take(Push) if m.epoch == 2] == [1], (
        "partition 0 said that it has clock 0"
    )
    rig.begin()
    assert [(m.epoch, m.partition) for m in rig.take(Pull)] == [(2, 1)]
    rig.worker.params(Params(2, 1, 1, 1, ()))
    command = [c for c in rig.asked if isinstance(c, Compute)][-1]
    assert command.clock == 1
    assert all(np.array_equal(a, b) for a, b in zip(command.parts[0], blocks, strict=True))
    assert not any(a is b for a, b in zip(command.parts[0], blocks, strict=True)), "memory of its own"


def test_after_a_rollback_everything_is_read_again():
    rig = Rig()
    rig.begin()
    rig.answer_pulls()
    rig.compute()
    rig.begin()
    rig.take(Pull)
    rig.worker.params(Params(1, 0, 1, 1, ()))
    rig.worker.adopt(replace(VIEW, epoch=2, timeline=2))
    rig.begin()
    assert [(m.epoch, m.partition, m.clock) for m in rig.take(Pull)] == [(2, 0, 0), (2, 1, 0)]


def test_waiting_for_others_is_no_time_of_the_links() -> None:
    """Where a pull rides on a push, what comes after the computing is the answer's time: stages are judged by it."""
    rig = Rig(mode="dense")
    assert rig.worker.doing is Doing.PULL
    rig.answer_pulls()
    assert rig.worker.doing is Doing.COMPUTE
    rig.compute()
    assert rig.worker.doing is Doing.PULL
    assert [pull.clock for pull in rig.take(Pull)] == [1, 1]
    rig.ack_all()
    assert rig.worker.doing is Doing.PULL


def test_a_push_that_is_alone_is_time_of_the_links() -> None:
    rig = Rig()
    rig.begin()
    rig.answer_pulls()
    rig.compute()
    assert rig.worker.doing is Doing.PUSH
    rig.ack_all()
    assert rig.worker.doing is Doing.PULL


def at_work(rig):
    """The computation that the shell has begun."""
    return [c for c in rig.asked if isinstance(c, Compute)][-1]


def test_a_rollback_aborts_what_is_being_computed():
    rig = Rig()
    rig.begin()
    rig.answer_pulls()
    order = at_work(rig)
    rig.worker.adopt(replace(VIEW, epoch=2, timeline=2))
    assert order.cursor.is_aborted
    assert rig.worker.doing is Doing.PULL


def test_a_computation_goes_on_under_a_view_that_still_deals_it_and_ends_where_none_does():
    rig = Rig()
    rig.begin()
    rig.answer_pulls()
    order = at_work(rig)
    rig.worker.adopt(replace(VIEW, epoch=2, open=((0, (("w", 0b1111), ("b", 0b11110000))),)))
    assert not order.cursor.is_aborted
    rig.worker.adopt(replace(VIEW, epoch=3, open=((0, (("b", 0b1111), ("b", 0b11110000))),)))
    assert order.cursor.is_aborted


def test_a_bundle_that_comes_back_after_an_abort_is_computed_whole():
    """Its first partition had been reported before the abort."""
    rig = Rig()
    rig.begin()
    rig.answer_pulls()
    order = at_work(rig)
    first = ((1, Contribution(())),)
    rig.worker.computed(Computed(1, 0, 0b1111, first))
    rig.worker.adopt(replace(VIEW, epoch=2, open=((0, (("b", 0b1111), ("b", 0b11110000))),)))
    rig.worker.computed(Computed(1, 0, 0b1111, ((0, Contribution(())),)))  # too late to be stopped
    rig.worker.adopt(replace(VIEW, epoch=3, open=((0, (("w", 0b1111), ("b", 0b11110000))),)))
    rig.begin()
    rig.answer_pulls()
    assert at_work(rig) is not order
    assert at_work(rig).bundles == (0b1111,)
