"""The worker of a job that overlaps: it pulls a partition right after its push, and computes on what is here."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from agileml.core.node.worker import Worker
from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.commands import Abort, Compute, Computed, Deliver
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.messages import Ack, Behind, Params, Pull, Push
from agileml.core.protocol.view import INITIAL, View
from tests.agileml.core.fixtures import make_job

PARTITIONS = 3
VIEW = View(
    epoch=1,
    stage=1,
    members=("a", "w"),
    owner=("a", "w", "a"),
    backup=("a", "w", "a"),
    share=(("w", 0b1111), ("a", 0b11110000)),
    previous=("",) * 8,
    base=0,
    open=(),
    timeline=1,
    committed=INITIAL,
)


class Rig:
    def __init__(self, mode: str = "overlap") -> None:
        self.said: list[object] = []  # messages and commands, in their order
        job = make_job(mode, partitions=PARTITIONS)
        self.worker = Worker(NodeIo("w", job, lambda to, m: self.said.append(m), self.said.append))
        self.worker.adopt(VIEW)

    def take(self) -> list[object]:
        said, self.said[:] = list(self.said), []
        return said

    def answer(self, clock: int, *partitions: int, epoch: int = 1) -> list[object]:
        """The parameters of some partitions arrive; says what the worker does."""
        for partition in partitions:
            self.worker.params(Params(epoch, partition, clock, clock, blocks(clock, partition)))
        return self.take()

    def computed(self, clock: int, *partitions: int) -> list[object]:
        for partition in partitions:
            found = ((partition, Contribution(())),)
            self.worker.computed(Computed(1, clock, 0b1111, found))
        return self.take()

    def clock(self, clock: int) -> None:
        """A whole clock, whose pushes are not answered yet."""
        self.answer(clock, *range(PARTITIONS))
        self.computed(clock, *range(PARTITIONS))


class Block(tuple[str, int, int]):
    """Stands for an array."""

    def copy(self) -> Block:
        return self


def blocks(clock: int, partition: int) -> tuple[object, ...]:
    return (Block(("block", clock, partition)),)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def shown(said: list[object]) -> list[tuple[str, int, int]]:
    return [(type(m).__name__, m.partition, m.clock) for m in said]  # type: ignore[attr-defined]


def test_each_partition_is_pulled_for_the_next_clock_right_after_its_push(rig: Rig) -> None:
    assert shown(rig.take()) == [("Pull", p, 0) for p in range(PARTITIONS)]
    rig.answer(0, *range(PARTITIONS))
    assert shown(rig.computed(0, 2)) == [("Push", 2, 0), ("Pull", 2, 1)]
    assert shown(rig.computed(0, 1, 0)) == [("Push", 1, 0), ("Pull", 1, 1), ("Push", 0, 0), ("Pull", 0, 1)]


def test_computing_begins_with_partition_0_and_the_others_are_delivered(rig: Rig) -> None:
    rig.clock(0)
    assert rig.answer(1, 2) == []
    (order,) = rig.answer(1, 0)
    assert isinstance(order, Compute)
    assert (order.clock, order.bundles) == (1, (0b1111,))
    assert order.parts == (blocks(1, 0), None, blocks(1, 2))
    assert rig.answer(1, 2) == [], "it has that one"
    assert rig.answer(1, 1) == [Deliver(1, 1, 1, blocks(1, 1))]  # type: ignore[arg-type]
    assert rig.worker.clock == 1, "parameters of a later version acknowledge the pushes"
    assert shown(rig.computed(1, 1)) == [("Push", 1, 1), ("Pull", 1, 2)]


def test_the_clock_before_may_still_wait_for_its_acknowledgements(rig: Rig) -> None:
    rig.clock(0)
    rig.answer(1, 0)
    assert rig.worker.clock == 0
    for partition in range(PARTITIONS):
        rig.worker.ack(Ack(1, partition, 0, 0b1111))
    assert rig.worker.clock == 1
    assert shown(rig.take()) == [], "all is asked for, and at work"
    assert [type(m) for m in rig.answer(1, 1, 2)] == [Deliver, Deliver]


def test_whatever_is_whole_is_computed_as_ever(rig: Rig) -> None:
    rig.take()
    (order,) = rig.answer(0, 1, 2, 0)
    assert isinstance(order, Compute)
    assert order.parts == tuple(blocks(0, p) for p in range(PARTITIONS))


@pytest.mark.parametrize("goes_back", [False, True], ids=["same timeline", "rollback"])
def test_a_new_view_aborts_what_lacks_blocks_and_keeps_those_of_its_timeline(
    rig: Rig, goes_back: bool
) -> None:
    rig.clock(0)
    rig.answer(1, 0, 2)
    rig.worker.adopt(replace(VIEW, epoch=2, base=0 if goes_back else 1, timeline=2 if goes_back else 1))
    said = rig.take()
    assert said[0] == Abort(1, 1)
    asked = [(m.clock, m.partition) for m in said if isinstance(m, Pull)]
    assert asked == ([(0, p) for p in range(PARTITIONS)] if goes_back else [(1, 1)])
    if not goes_back:  # it begins anew, with the blocks that came under the view before
        assert isinstance(said[-1], Compute)
        assert rig.answer(1, 1, epoch=2)[-1] == Deliver(1, 1, 1, blocks(1, 1))  # type: ignore[arg-type]


def test_a_view_that_deals_the_worker_nothing_aborts_as_well(rig: Rig) -> None:
    rig.clock(0)
    rig.answer(1, 0)
    rig.worker.adopt(replace(VIEW, epoch=2, timeline=2, share=(("a", 0b11111111),)))
    assert rig.take() == [Abort(1, 1)]


def test_a_clock_that_is_done_without_it_is_aborted(rig: Rig) -> None:
    rig.clock(0)
    rig.answer(1, 0)
    rig.worker.behind(Behind(1, 1, 1))
    assert rig.take() == [Abort(1, 1)]


def test_only_what_was_asked_for_is_asked_for_again(rig: Rig) -> None:
    rig.answer(0, *range(PARTITIONS))
    rig.computed(0, 2)
    rig.worker.resend()
    assert shown(rig.take()) == [("Pull", 2, 1), ("Push", 2, 0)]


def test_no_computation_is_asked_for_while_another_lacks_blocks(rig: Rig) -> None:
    """The shell has one place for what is delivered."""
    lacking = False
    for clock in range(6):
        for message in [*rig.answer(clock, 0), *rig.answer(clock, 1, 2), *rig.computed(clock, 2, 1, 0)]:
            if isinstance(message, Compute):
                assert not lacking
                missing = [p for p, found in enumerate(message.parts) if found is None]
                lacking = bool(missing)
            if isinstance(message, Deliver):
                missing.remove(message.partition)
                lacking = bool(missing)
    assert rig.worker.clock == 5
    assert all(a <= b for a, b in pairwise(range(3)))


def test_pushes_carry_on_after_the_last_clock(rig: Rig) -> None:
    last = rig.worker.job.clocks - 1
    for clock in range(last):
        rig.clock(clock)
    rig.answer(last, *range(PARTITIONS))
    said = rig.computed(last, 2, 1, 0)
    assert [type(m) for m in said] == [Push] * PARTITIONS


def test_batches_are_pulled_one_after_the_other_once_a_clock_is_computed() -> None:
    rig = Rig("batches")
    assert shown(rig.take()) == [("Pull", 0, 0)], "the first batch, while it measures"
    assert shown(rig.answer(0, 0)[:1]) == [("Pull", 1, 0)]
    assert [type(m).__name__ for m in rig.answer(0, 1, 2)] == ["Deliver", "Pull", "Deliver"]
    assert shown(rig.computed(0, 2, 1)) == [("Push", 2, 0), ("Push", 1, 0)]
    assert shown(rig.computed(0, 0)) == [("Push", 0, 0), ("Pull", 0, 1)]
    said = rig.answer(1, 0)
    assert shown(said[:1]) == [("Pull", 1, 1)]
    assert isinstance(said[1], Compute) and said[1].parts == (blocks(1, 0), None, None)
    rig.worker.resend()
    assert shown([m for m in rig.take() if isinstance(m, Pull)]) == [("Pull", 1, 1)], (
        "what is not due is not asked for"
    )
