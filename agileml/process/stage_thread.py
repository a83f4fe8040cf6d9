"""The compute thread of a pipeline's stage: runs the stage's list of actions, and waits for what neighbours send.

The list is 1F1B with a flush for the units of one bundle, or the zero-bubble order. A computation ends early when the
worker aborts it, because a membership change began the clock again for all stages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from agileml.application import Application, Stage, StagePlan, Unit, Wire
from agileml.core.compute.cursor import Cursor
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.parameters.fold import Contribution, Fold
from agileml.core.parameters.layout import Dense
from agileml.core.protocol.commands import (
    Abort,
    Arrange,
    Begin,
    Compute,
    Computed,
    Crossed,
    Deliver,
    LoadSlices,
    NodeEvent,
    PassOn,
)
from agileml.core.protocol.messages import Crossing, Failure
from agileml.process.compute import Aborted, ComputeThread, Delivery
from agileml.process.user_failures import ComputeJob
from pipeline.schedule.actions import Action, Kind
from pipeline.schedule.policies import flush
from straggler.coverage import members


class Mailbox:
    """What neighbours sent, by epoch, clock, unit and direction. One thread delivers, another waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stages: Arrange | None = None
        self._crossings: dict[tuple[int, int, int, bool], Crossing] = {}
        self._is_closed = False

    def close(self) -> None:
        """End every wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def arrange(self, command: Arrange) -> None:
        """The stages of an epoch are known; what older epochs sent is dropped."""
        with self._changed:
            self._stages = command
            self._crossings = {key: c for key, c in self._crossings.items() if key[0] >= command.epoch}
            self._changed.notify()

    def deliver(self, crossing: Crossing) -> None:
        """A neighbour's message, perhaps a second time."""
        with self._changed:
            if self._stages is None or crossing.epoch >= self._stages.epoch:
                self._crossings[crossing.epoch, crossing.clock, crossing.unit, crossing.is_forward] = crossing
                self._changed.notify()

    def stages(self, epoch: int, cursor: Cursor) -> Arrange:
        """The stages of an epoch, when they are known. Raises Aborted."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._ends(cursor) or (self._stages is not None and self._stages.epoch >= epoch)
            )
            if self._ends(cursor) or self._stages is None or self._stages.epoch != epoch:
                raise Aborted
            return self._stages

    def take(self, epoch: int, clock: int, unit: int, *, is_forward: bool, cursor: Cursor) -> Crossing:
        """Wait for a neighbour's message. Raises Aborted."""
        key = (epoch, clock, unit, is_forward)
        with self._changed:
            self._changed.wait_for(lambda: self._ends(cursor) or key in self._crossings)
            if self._ends(cursor):
                raise Aborted
            return self._crossings[key]

    def _ends(self, cursor: Cursor) -> bool:
        return cursor.is_aborted or self._is_closed

    def forget(self, epoch: int, clock: int) -> None:
        """All of a clock is computed here: its messages, also those that come again, are of no use."""
        with self._changed:
            self._crossings = {k: c for k, c in self._crossings.items() if k[:2] > (epoch, clock)}


@dataclass
class _Run:
    """A bundle's way through this stage. before, behind: the neighbours, "" where there is none."""

    job: Compute
    stage: Stage
    before: str
    behind: str
    folds: list[Fold]
    sums: dict[int, tuple[float, int]] = field(default_factory=dict)  # by unit: loss, examples


class StageThread(ComputeThread):
    """Carries out a stage's computations. `me`: this machine. plan: where the run may cut the application's stages."""

    def __init__(
        self,
        me: str,
        application: Application,
        plan: StagePlan,
        work: UnitComputer,
        report: Callable[[NodeEvent | Failure], None],
        load_kernels: Callable[[], None],
        *,
        puts_off: bool,
    ) -> None:
        self._me, self._application, self._plan, self._puts_off = me, application, plan, puts_off
        self._mailbox = Mailbox()
        self._made: tuple[tuple[int, int], Stage] | None = None

        def load() -> None:
            load_kernels()
            application.stages()  # recording the layers takes seconds

        super().__init__(work, report, load)

    def stop(self) -> None:
        self._mailbox.close()
        super().stop()

    def ask(self, job: ComputeJob | Deliver | Abort | Arrange | PassOn) -> None:
        """Queue a job, or hand a computation what it may be waiting for."""
        match job:
            case Arrange():
                self._mailbox.arrange(job)
            case PassOn():
                self._mailbox.deliver(job.crossing)
            case _:
                super().ask(job)

    def _do(self, job: ComputeJob, delivery: Delivery | None) -> None:
        match job:
            case Compute():
                assert delivery is not None
                with suppress(Aborted):
                    self._all(job, delivery)
                self._over(job)
            case LoadSlices() | Begin():
                super()._do(job, delivery)

    def _all(self, job: Compute, delivery: Delivery) -> None:
        epoch = job.timeline
        stages = self._mailbox.stages(epoch, job.cursor).stages
        at = next(number for number, (node, _, _) in enumerate(stages) if node == self._me)
        _, first, stop = stages[at]
        stage = self._stage(first, stop)
        before = stages[at - 1][0] if at else ""
        behind = stages[at + 1][0] if at + 1 < len(stages) else ""
        for bundle in job.bundles:
            started_s = time.monotonic()
            stage.use([delivery.take(partition)[0] for partition in range(first, stop)])
            run = _Run(job, stage, before, behind, [Fold(deterministic=True) for _ in range(first, stop)])
            units = list(members(bundle))
            for action in _actions(len(stages), len(units), self._puts_off)[at]:
                self._act(run, action.kind, units[action.minibatch - 1])
            found = tuple((first + place, fold.total()) for place, fold in enumerate(run.folds))
            took_s = time.monotonic() - started_s
            self._report(Computed(epoch, job.clock, bundle, found, took_s))
        self._mailbox.forget(epoch, job.clock)

    def _stage(self, first: int, stop: int) -> Stage:
        if self._made is None or self._made[0] != (first, stop):
            stages = self._application.stages()
            assert stages is not None, self._application
            self._made = (first, stop), stages.stage(self._plan.borders, first, stop)
        return self._made[1]

    def _act(self, run: _Run, kind: Kind, number: int) -> None:
        unit = self._work.unit(run.job.clock, number)
        if run.job.cursor.is_aborted:
            raise Aborted
        if kind is Kind.FORWARD:
            self._forward(run, unit, number)
        elif kind is Kind.BACKWARD:
            self._backward(run, unit, number)
        if kind is Kind.WEIGHTS or (kind is Kind.BACKWARD and not self._defers(run)):
            self._count(run, unit, number)

    def _defers(self, run: _Run) -> bool:
        """The first stage puts nothing off: it has no gradient to send back."""
        return self._puts_off and bool(run.before)

    def _forward(self, run: _Run, unit: Unit, number: int) -> None:
        incoming: tuple[Wire, ...] = ()
        if run.before:
            came = self._taken(run, number, is_forward=True)
            incoming = tuple(wire for wire in came.tensors if wire is not None)
        self._work.load([unit.slice])
        output = run.stage.forward(unit, self._work.items(unit.slice), incoming, defer=self._defers(run))
        run.sums[number] = output.loss, output.examples
        if run.behind:
            self._send(run, run.behind, number, output.outgoing, is_forward=True)

    def _backward(self, run: _Run, unit: Unit, number: int) -> None:
        gradients: tuple[Wire | None, ...] = ()
        if run.behind:
            came = self._taken(run, number, is_forward=False)
            gradients = came.tensors
            run.sums[number] = came.loss, came.examples
        into = run.stage.backward(unit, gradients)
        if run.before:
            self._send(run, run.before, number, tuple(into), is_forward=False)

    def _count(self, run: _Run, unit: Unit, number: int) -> None:
        """Add the unit's updates up along the tree; loss and examples go with partition 0, as in every job."""
        loss, examples = run.sums.pop(number)
        for place, (fold, values) in enumerate(zip(run.folds, run.stage.updates(unit), strict=True)):
            sums = (loss, examples) if not run.before and not place else (0.0, 0)
            fold.add(1 << number, Contribution((Dense(values),), *sums), given=True)

    def _taken(self, run: _Run, number: int, *, is_forward: bool) -> Crossing:
        job = run.job
        return self._mailbox.take(job.timeline, job.clock, number, is_forward=is_forward, cursor=job.cursor)

    def _send(
        self, run: _Run, to: str, number: int, tensors: tuple[Wire | None, ...], *, is_forward: bool
    ) -> None:
        sums = (0.0, 0) if is_forward else run.sums[number]
        message = Crossing(run.job.timeline, run.job.clock, number, is_forward, tensors, *sums)
        self._report(Crossed(to, message))


@cache
def _actions(stages: int, units: int, puts_off: bool) -> tuple[tuple[Action, ...], ...]:
    """The lists of all stages for one flush of so many units."""
    return flush((1,) * stages, units, units, zero_bubble=puts_off).workers
