"""Repeats a run of a pipeline without a flush in one process, from its log: the same stages over the same clocks, so
the same versions of weights, and the same bits.

All stages are walked by the code of machines (`walk`), each as far as it comes before it needs another one's message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from agileml.application import Application, Array, StagePlan
from agileml.core.async_stages.versions import lag_of, version_of
from agileml.core.async_stages.walkers import stage_walker
from agileml.core.compute.contract import checked_tables, initial_values
from agileml.core.compute.cursor import Cursor
from agileml.core.compute.threads import single_threaded
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.parameters.apply import State, apply_total, initial_state, partition_optimizers, whole_slots
from agileml.core.parameters.layout import Layout
from agileml.core.parameters.optimizer import Optimizer
from agileml.core.protocol.commands import Arrange, Compute, Computed, Crossed
from agileml.core.protocol.job import PipelineRules
from agileml.core.protocol.messages import Crossing
from agileml.core.protocol.view import StageGroup, StagesFrom
from agileml.core.sequential import Trained
from agileml.core.stage.walk import Awaited, Crossings, StageWalker, Walk
from agileml.events.run import StagesArranged

OnClock = Callable[[int, float, int], object]


class StagesMissingError(ValueError):
    """The log does not say the stages of all clocks: one sentence."""


def stages_in(events: Iterable[StagesArranged], clocks: int) -> tuple[StagesFrom, ...]:
    """The stages that computed the first `clocks` clocks. Raises StagesMissingError.

    Those of a later epoch replace earlier ones of the same clocks, which a rollback has undone.
    """
    found: list[StagesFrom] = []
    for event in sorted(events, key=lambda event: event.epoch):
        found = [each for each in found if each.clock < event.clock]
        found.append(StagesFrom(event.clock, event.ends, event.overlapping))
    first = min((each.clock for each in found), default=None)
    if first != 0:
        logged = "no stages" if first is None else f"stages from clock {first} on"
        raise StagesMissingError(
            f"found {logged}, expected from clock 0 on: the log of a resumed run begins with the checkpoint"
        )
    return tuple(each for each in found if each.clock < clocks)


@dataclass
class _Stage:
    """A stage between two changes. step: the next one that it takes. summed: clocks that are not applied, because the
    next step does not read them yet."""

    walker: StageWalker
    first: int  # partition
    step: int
    version: int
    summed: deque[Computed] = field(default_factory=deque)
    crossings: Crossings = field(default_factory=Crossings)
    walk: Walk | None = None
    awaited: Awaited | None = None


class StagesReplay:
    """Trains by a log's stages. `plan` says where the partitions are cut."""

    def __init__(
        self,
        application: Application,
        optimizer: Optimizer,
        parts: int,
        plan: StagePlan,
        rules: PipelineRules,
        on_clock: OnClock = lambda clock, loss, examples: None,
    ) -> None:
        self._application, self._plan, self._rules, self._on_clock = application, plan, rules, on_clock
        self._tables = checked_tables(application)
        self._layout = Layout(self._tables, len(plan.seconds), borders=plan.borders)
        self._work = UnitComputer(application, self._layout, parts)
        self._optimizer = optimizer
        start = initial_values(application, self._tables)
        partitions = range(self._layout.partitions)
        self._optimizers = [partition_optimizers(optimizer, self._layout, p) for p in partitions]
        self._blocks: list[tuple[Array, ...]] = [tuple(self._layout.blocks(start, p)) for p in partitions]
        self._states: list[tuple[State, ...]] = [
            tuple(initial_state(self._tables, blocks, optimizer)) for blocks in self._blocks
        ]

    def train(self, stages: Sequence[StagesFrom], clocks: int) -> Trained:
        """Train for so many clocks, under these stages one after the other. Raises the errors of `train`."""
        ends = (*(each.clock for each in stages), clocks)
        with single_threaded():
            for number, (each, (first, stop)) in enumerate(zip(stages, pairwise(ends), strict=True)):
                self._between_changes(number, each, first, stop)
        slots = whole_slots(self._layout, self._states, self._optimizer.slots)
        return Trained(self._layout.whole(self._blocks), slots)

    def _between_changes(self, epoch: int, layers: StagesFrom, first: int, stop: int) -> None:
        edges = (0, *layers.ends)
        names = [str(number) for number in range(len(layers.ends))]
        whole = (1 << self._work.units) - 1
        arranged = Arrange(
            epoch,
            tuple(
                StageGroup(*edge, ((name, whole),), overlaps=number in layers.overlapping)
                for number, (name, edge) in enumerate(zip(names, pairwise(edges), strict=True))
            ),
        )
        made = (self._application, self._plan, self._work, self._rules)
        stages = [
            _Stage(stage_walker(name, *made), edge, first, first)
            for name, edge in zip(names, edges, strict=False)
        ]
        while any(stage.version < stop for stage in stages):
            before = [(stage.step, stage.awaited, stage.version) for stage in stages]
            for number in range(len(stages)):
                self._go_on(number, stages, arranged, first, stop)
            after = [(stage.step, stage.awaited, stage.version) for stage in stages]
            assert before != after, "stages wait for each other"

    def _go_on(self, number: int, stages: Sequence[_Stage], arranged: Arrange, first: int, stop: int) -> None:
        """Take the steps of a stage until it needs a message that is not there."""
        stage = stages[number]
        lag = lag_of(self._rules.mode, arranged.stages, number)
        while stage.version < stop:
            if stage.walk is None:
                self._apply_up_to(version_of(stage.step, first, lag), stage)
                if stage.version == stop:
                    return
                job = self._job(arranged.epoch, stage.step, begins=stage.step < stop)
                stage.walk = stage.walker.walk(job, arranged, self._blocks.__getitem__, lambda: 0.0)
                stage.step += 1
            answer = None
            if stage.awaited is not None:
                answer = stage.crossings.get(stage.awaited)
                if answer is None:
                    return
                stage.awaited = None
            self._send(stage, stages, answer, arranged.epoch)

    def _send(self, stage: _Stage, stages: Sequence[_Stage], answer: Crossing | None, epoch: int) -> None:
        """Let a stage go on to what it needs or has next."""
        assert stage.walk is not None
        try:
            found = stage.walk.send(answer)
        except StopIteration as end:
            stage.walk = None
            if end.value is not None:
                stage.crossings.forget(epoch, end.value)
            return
        match found:
            case Awaited():
                stage.awaited = found
            case Crossed():
                stages[int(found.to)].crossings.deliver(found.crossing)
            case Computed():
                stage.summed.append(found)

    def _apply_up_to(self, version: int, stage: _Stage) -> None:
        """Apply the sums of the clocks that the stage reads in a step on this version."""
        while stage.version < version:
            self._apply(stage.summed.popleft())
            stage.version += 1

    def _job(self, epoch: int, clock: int, *, begins: bool) -> Compute:
        units = self._work.units
        return Compute(epoch, clock, ((1 << units) - 1,), (), Cursor(units), begins=begins)

    def _apply(self, found: Computed) -> None:
        """The update of a stage's partitions after a clock. Versions that are read stay as they are."""
        for partition, total in found.contributions:
            applied = apply_total(
                total,
                self._tables,
                self._blocks[partition],
                self._states[partition],
                found.clock,
                self._optimizers[partition],
                in_place=False,
                state_in_place=True,
            )
            self._blocks[partition], self._states[partition] = applied.blocks, applied.state
            if partition == 0:
                self._on_clock(found.clock, total.loss, total.examples)
