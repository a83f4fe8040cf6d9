"""The compute thread of a stage: its waiting for neighbours is no computing, and its machine may be a slow one."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import pytest

from agileml.application import Array, Settings, StagePlan
from agileml.config.hardware import Hardware
from agileml.config.job import from_values
from agileml.core.compute.cursor import Cursor
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.parameters.layout import Layout
from agileml.core.protocol.commands import Abort, Arrange, Compute, Computed, PassOn
from agileml.core.protocol.messages import Crossing, Failure
from agileml.core.protocol.view import StageGroup
from agileml.core.stage.walk import Awaited, StageWalker, Walk
from agileml.events.terms import Tier
from agileml.process.compute_backend import start_compute
from agileml.process.spec import RunSpec
from agileml.process.stage_thread import StageThread
from tests.faults.test_pipelines import TIED
from tests.model.toy import DenseToy

LIMIT_S = 600.0
STAGES = Arrange(1, (StageGroup(0, 1, (("a", 1),)), StageGroup(1, 2, (("b", 1),))))
SUMS_S = 100.0  # what a walk says that it took


class AwaitingWalker(StageWalker):
    """Waits for the units that a clock names, and then has sums."""

    def __init__(self, work: UnitComputer, units: dict[int, tuple[int, ...]]) -> None:
        super().__init__("b", work.application, StagePlan((), ()), work, puts_off=False)
        self._units = units
        self.waits: queue.SimpleQueue[int] = queue.SimpleQueue()

    def walk(
        self,
        job: Compute,
        stages: Arrange,
        blocks: Callable[[int], tuple[Array, ...]],
        now_s: Callable[[], float],
    ) -> Walk:
        for unit in self._units[job.clock]:
            self.waits.put(unit)
            yield Awaited(job.timeline, job.clock, unit, True)
        yield Computed(job.timeline, job.clock, 1, (), SUMS_S)
        return job.clock


class Staged:
    def __init__(self, units: dict[int, tuple[int, ...]]) -> None:
        app = DenseToy(Settings(seed=3, slices=2, clocks_per_pass=2), 1)
        work = UnitComputer(app, Layout(tuple(app.tables()), 2), deterministic=True)
        self.walker = AwaitingWalker(work, units)
        self.reported: queue.SimpleQueue[Computed | Failure] = queue.SimpleQueue()
        self.thread = StageThread(self.walker, work, self.reported.put, lambda: None)  # type: ignore[arg-type]
        self.thread.ask(STAGES)

    def compute(self, clock: int) -> None:
        self.cursor = Cursor(1)
        self.thread.ask(Compute(1, clock, (1,), (), self.cursor))

    def abort(self, clock: int) -> None:
        """As a worker does."""
        self.cursor.abort()
        self.thread.ask(Abort(1, clock))

    def waits_for(self, unit: int) -> None:
        assert self.walker.waits.get(timeout=LIMIT_S) == unit

    def deliver(self, clock: int, unit: int) -> None:
        self.thread.ask(PassOn(Crossing(1, clock, unit, True, ())))

    def answer(self) -> Computed:
        found = self.reported.get(timeout=LIMIT_S)
        assert isinstance(found, Computed), found
        return found


@pytest.fixture
def staged() -> Iterator[Staged]:
    made = Staged({0: (1, 2), 1: ()})
    yield made
    made.thread.stop()


def test_the_time_until_a_neighbour_has_sent_is_waited(staged: Staged) -> None:
    staged.compute(0)
    for unit in (1, 2):
        staged.waits_for(unit)
        staged.deliver(0, unit)
    found = staged.answer()
    assert found.waited_s > 0
    assert found.compute_s == SUMS_S - found.waited_s


def test_what_an_aborted_clock_waited_is_not_taken_from_the_next_one(staged: Staged) -> None:
    staged.compute(0)
    staged.waits_for(1)
    staged.deliver(0, 1)
    staged.waits_for(2)
    staged.abort(0)
    staged.compute(1)
    found = staged.answer()
    assert (found.clock, found.waited_s, found.compute_s) == (1, 0.0, SUMS_S)


def test_the_pause_of_a_machine_that_stands_for_a_slower_one_is_computing(staged: Staged) -> None:
    staged.thread.pace.speed = 1e-3
    staged.compute(1)
    found = staged.answer()
    assert found.waited_s == 0.0
    assert found.compute_s > SUMS_S


def test_a_stage_computes_at_the_speed_that_the_config_gives_its_machine() -> None:
    spec = RunSpec("r", from_values(TIED | {"pace": {"speeds": {"m1": 0.25}}}))
    application = spec.build()
    spec = spec.measured(application)
    work = UnitComputer(application, spec.job(application).layout, deterministic=True)
    slow = Hardware(1, spec.speed_of("m1", Tier.TRANSIENT))
    thread, _ = start_compute("m1", spec, work, slow, lambda event: None, lambda reason: None)
    try:
        assert isinstance(thread, StageThread) and thread.pace.speed == 0.25
    finally:
        thread.stop()
