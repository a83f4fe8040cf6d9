"""Blocks that are delivered to a computation while it runs."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from agileml.application import Array, ArrivingTables, Settings, Unit, Updates
from agileml.core.compute.cursor import Cursor
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.parameters.layout import Layout
from agileml.core.protocol.commands import Abort, Compute, Computed, Deliver
from agileml.core.protocol.messages import Failure
from agileml.process.compute import Aborted, ComputeThread, Delivery
from tests.model.toy import DenseToy

LIMIT_S = 60.0


def some(number: int) -> tuple[Array, ...]:
    return (np.full(4, number),)


def until_somebody_waits(delivery: Delivery) -> None:
    while not delivery._changed._waiters:  # type: ignore[attr-defined]
        time.sleep(0.001)


def test_what_is_here_is_taken_at_once_and_the_rest_when_it_comes() -> None:
    delivery = Delivery([some(0), None])
    assert delivery.take(0)[0][0] == 0
    assert not delivery.is_whole
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(delivery.take, 1)
        until_somebody_waits(delivery)
        delivery.deliver(1, some(1))
        assert taken.result(LIMIT_S)[0][0] == 1
    assert delivery.is_whole
    assert delivery.settled() > 0
    assert delivery.settled() == 0


def test_after_an_abort_nothing_more_is_waited_for() -> None:
    delivery = Delivery([some(0), None])
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(delivery.take, 1)
        until_somebody_waits(delivery)
        delivery.abort()
        with pytest.raises(Aborted):
            taken.result(LIMIT_S)
    with pytest.raises(Aborted):
        delivery.take(1)
    assert delivery.take(0)[0][0] == 0


class Watched(DenseToy):
    """Says when it waits, and may not like what it sees."""

    waits_for_parameters = True

    def __init__(self, settings: Settings, parts: int) -> None:
        super().__init__(settings, parts)
        self.waits: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.is_picky = False

    def process(self, unit: Unit, items: Any, parameters: Mapping[str, Array]) -> Updates:
        if isinstance(parameters, ArrivingTables):
            self.waits.put(unit.clock)
            try:
                parameters.wait_for_all()
            except BaseException:
                if self.is_picky:
                    raise ValueError("such parameters are none of mine") from None
                raise
        return super().process(unit, items, parameters)


class Computing:
    def __init__(self, partitions: int = 3) -> None:
        self.app = Watched(Settings(seed=3, slices=2, clocks_per_pass=2), 1)
        self.layout = Layout(tuple(self.app.tables()), partitions)
        self.values = {table.name: self.app.initial(table) for table in self.app.tables()}
        self.reported: queue.SimpleQueue[Computed | Failure] = queue.SimpleQueue()
        work = UnitComputer(self.app, self.layout, deterministic=False, buffers=2)
        self.thread = ComputeThread(work, self.reported.put, lambda: None)  # type: ignore[arg-type]

    def parts(self, missing: Sequence[int] = ()) -> tuple[tuple[Array, ...] | None, ...]:
        blocks = (self.layout.blocks(self.values, p) for p in range(self.layout.partitions))
        return tuple(None if p in missing else found for p, found in enumerate(blocks))

    def answer(self) -> Computed:
        found = self.reported.get(timeout=LIMIT_S)
        assert isinstance(found, Computed), found
        return found


@pytest.fixture
def computing():
    made = Computing()
    yield made
    made.thread.stop()


def test_delivered_blocks_give_the_same_updates(computing: Computing) -> None:
    computing.thread.ask(Compute(1, 0, (0b11,), computing.parts(), Cursor(2)))
    whole = computing.answer()
    computing.thread.ask(Compute(1, 0, (0b11,), computing.parts(missing=(1, 2)), Cursor(2)))
    assert computing.app.waits.get(timeout=LIMIT_S) == 0
    assert computing.thread.is_at_work(0) and not computing.thread.is_at_work(1)
    assert computing.reported.empty()
    until_somebody_waits(computing.thread._delivery)
    for partition in (2, 1):
        blocks = computing.parts()[partition]
        assert blocks is not None
        computing.thread.ask(Deliver(1, 0, partition, blocks))
    late = computing.answer()
    assert late.waited_s > 0
    for (_, a), (_, b) in zip(whole.contributions, late.contributions, strict=True):
        assert a.loss == b.loss
        for x, y in zip(a.blocks, b.blocks, strict=True):
            assert x is y is None or x.values.tobytes() == y.values.tobytes()  # type: ignore[union-attr]
    assert not computing.thread.is_at_work(0)


@pytest.mark.parametrize("is_picky", [False, True], ids=["it waits", "user code turns it into its own error"])
def test_an_aborted_computation_says_nothing_and_the_next_one_is_done(
    computing: Computing, is_picky: bool
) -> None:
    computing.app.is_picky = is_picky
    computing.thread.ask(Compute(1, 1, (0b11,), computing.parts(missing=(2,)), Cursor(2)))
    assert computing.app.waits.get(timeout=LIMIT_S) == 1
    computing.thread.ask(Abort(1, 1))
    computing.thread.ask(Compute(2, 0, (0b11,), computing.parts(), Cursor(2)))
    assert (answer := computing.answer()).timeline == 2, answer
    assert not computing.thread.is_at_work(0) and not computing.thread.is_at_work(1)


def test_an_error_of_user_code_that_was_not_aborted_ends_the_machine(computing: Computing) -> None:
    computing.app.is_picky = True
    computing.thread.ask(Compute(1, 1, (0b11,), computing.parts(missing=(2,)), Cursor(2)))
    assert computing.app.waits.get(timeout=LIMIT_S) == 1
    computing.values = {name: table[:1] for name, table in computing.values.items()}
    computing.thread.ask(Deliver(1, 1, 2, tuple(np.zeros(1000) for _ in range(2))))  # of no shape that fits
    failure = computing.reported.get(timeout=LIMIT_S)
    assert isinstance(failure, Failure), failure
