"""One stage's way through a clock of a pipeline: the fixed list of its actions, taken one after the other.

The list is 1F1B with a flush, or the zero-bubble order, for the machine's units of the clock (`unit_order`). A
walk stops where it needs data of a neighbour, and where it has results for others: its driver (a thread, or a
simulation) supplies the data and sends the results. So it neither waits nor sends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from agileml.application import Application, Array, Stage, StagePlan, Wire
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.parameters.fold import Contribution, Fold
from agileml.core.parameters.layout import Dense
from agileml.core.protocol.commands import Arrange, Compute, Computed, Crossed
from agileml.core.protocol.messages import Crossing
from agileml.core.protocol.view import StageGroup
from agileml.core.stage.unit_order import UnitAction, clock_lists
from pipeline.schedule.actions import Kind
from straggler.coverage import Units, members, union


@dataclass(frozen=True, order=True)
class Awaited:
    """The message that a stage needs from a neighbour for its next action: activations, or gradients coming back."""

    epoch: int
    clock: int
    unit: int
    is_forward: bool


# Yields results for others, and requests for a neighbour's message, which the driver sends into it. Returns the last
# clock whose messages this stage needs no more; None: there is none.
Walk = Generator[Awaited | Crossed | Computed, Crossing | None, int | None]
Step = Generator[Awaited | Crossed | Computed, Crossing | None, None]


class Crossings:
    """The messages of neighbouring stages, until the clock is over here. A message may come twice, and before its
    epoch's stages are known."""

    def __init__(self) -> None:
        self.stages: Arrange | None = None
        self._kept: dict[Awaited, Crossing] = {}

    def arrange(self, command: Arrange) -> None:
        """Learn the stages of an epoch, and drop the messages of older epochs."""
        self.stages = command
        self._kept = {at: crossing for at, crossing in self._kept.items() if at.epoch >= command.epoch}

    def deliver(self, crossing: Crossing) -> None:
        """Keep a neighbour's message, unless it is of an older epoch."""
        if self.stages is None or crossing.epoch >= self.stages.epoch:
            at = Awaited(crossing.epoch, crossing.clock, crossing.unit, crossing.is_forward)
            self._kept[at] = crossing

    def get(self, at: Awaited) -> Crossing | None:
        """The message that a stage waits for; None if it has not come."""
        return self._kept.get(at)

    def forget(self, epoch: int, clock: int) -> None:
        """Drop the messages of a clock that is computed here, also those that come again."""
        over = epoch, clock
        self._kept = {at: crossing for at, crossing in self._kept.items() if (at.epoch, at.clock) > over}


@dataclass(frozen=True)
class StagePlace:
    """A machine's place among the stages."""

    number: int
    stages: tuple[StageGroup, ...]

    @property
    def here(self) -> StageGroup:
        """The stage of the machine."""
        return self.stages[self.number]

    @property
    def partitions(self) -> range:
        """The partitions of the stage."""
        return range(self.here.first, self.here.stop)

    @property
    def is_first(self) -> bool:
        return self.number == 0

    @property
    def is_last(self) -> bool:
        return self.behind_count == 0

    @property
    def behind_count(self) -> int:
        """Stages behind this one."""
        return len(self.stages) - 1 - self.number

    def neighbour(self, unit: int, *, is_forward: bool) -> str:
        """The machine to which the results of a unit go: of the stage behind, or on the way back of the one before."""
        return self.stages[self.number + (1 if is_forward else -1)].machine_of(unit)

    @classmethod
    def of(cls, machine: str, stages: Arrange) -> StagePlace:
        """Where a machine stands."""
        (number,) = [at for at, stage in enumerate(stages.stages) if machine in stage.machines]
        return cls(number, stages.stages)


@dataclass
class StageRun:
    """The way of a machine's bundles of a clock through its stage. `folds`: by bundle, the sums for each partition."""

    job: Compute
    place: StagePlace
    stage: Stage
    folds: dict[Units, list[Fold]]
    sums: dict[int, tuple[float, int]] = field(default_factory=dict)  # by unit: loss, examples

    @property
    def units(self) -> list[int]:
        """The units of all bundles, in order."""
        return list(members(union(self.job.bundles)))

    def awaited(self, number: int, *, is_forward: bool) -> Awaited:
        """The key of the message that a neighbour sends for a unit."""
        return Awaited(self.job.timeline, self.job.clock, number, is_forward)

    def crossed(self, number: int, tensors: tuple[Wire | None, ...], *, is_forward: bool) -> Crossed:
        """The command to send a unit's tensors to a neighbour."""
        sums = (0.0, 0) if is_forward else self.sums[number]
        to = self.place.neighbour(number, is_forward=is_forward)
        return Crossed(to, Crossing(self.job.timeline, self.job.clock, number, is_forward, tensors, *sums))

    def bundle_of(self, number: int) -> Units:
        """The bundle that a unit is of."""
        return next(bundle for bundle in self.folds if bundle >> number & 1)

    def counted(self, bundle: Units, compute_s: float) -> Computed | None:
        """The sums of a bundle's units, by partition, when all are there."""
        folds = self.folds[bundle]
        if folds[0].counted != bundle:
            return None
        totals = tuple(zip(self.place.partitions, (fold.total() for fold in folds), strict=True))
        return Computed(self.job.timeline, self.job.clock, bundle, totals, compute_s)


class StageWalker:
    """Computes the units of a clock at this machine's stage. plan: where the run may cut the application's stages."""

    def __init__(
        self, me: str, application: Application, plan: StagePlan, work: UnitComputer, *, puts_off: bool
    ) -> None:
        self._me, self._application, self._plan = me, application, plan
        self._work, self._puts_off = work, puts_off
        self._made: tuple[tuple[int, int], Stage] | None = None

    def walk(
        self,
        job: Compute,
        stages: Arrange,
        blocks: Callable[[int], tuple[Array, ...]],
        now_s: Callable[[], float],
    ) -> Walk:
        """All bundles of a computation under the stages of its epoch; ends early when the computation is aborted.

        `blocks` gives the parameters of a partition.
        """
        place, started_s = StagePlace.of(self._me, stages), now_s()
        stage = self._stage(place.here)
        stage.forget()
        stage.use([blocks(partition) for partition in place.partitions])
        run = new_run(job, place, stage)
        lists = clock_lists(stages.stages, stages.units(job.clock), puts_off=self._puts_off)
        for action in lists[self._me]:
            if job.cursor.is_aborted:
                return None
            yield from self._take(run, action)
            if self._is_counted(run, action):
                self._count(run, action.unit)
                computed = run.counted(run.bundle_of(action.unit), now_s() - started_s)
                if computed is not None and not job.cursor.is_aborted:
                    yield computed
                    started_s = now_s()
        return None if job.cursor.is_aborted else job.clock

    def _take(self, run: StageRun, action: UnitAction) -> Step:
        if action.kind is Kind.FORWARD:
            came = None if run.place.is_first else (yield run.awaited(action.unit, is_forward=True))
            yield from self._forward(run, action.unit, came)
        elif action.kind is Kind.BACKWARD:
            yield from self._backward(run, action.unit)

    def _is_counted(self, run: StageRun, action: UnitAction) -> bool:
        """True when the action is the last one for the unit at this stage."""
        return action.kind is (Kind.WEIGHTS if self._defers(run) else Kind.BACKWARD)

    def _stage(self, here: StageGroup) -> Stage:
        first, stop = here.first, here.stop
        if self._made is None or self._made[0] != (first, stop):
            stages = self._application.stages()
            assert stages is not None, self._application
            self._made = (first, stop), stages.stage(self._plan.borders, first, stop)
        return self._made[1]

    def _defers(self, run: StageRun) -> bool:
        """The first stage puts nothing off: it has no gradient to send back."""
        return self._puts_off and not run.place.is_first

    def _forward(self, run: StageRun, number: int, came: Crossing | None) -> Step:
        """The forward of a unit. came: the activations of the stage before."""
        assert (came is None) == run.place.is_first, (run.place, came)
        unit = self._work.unit(run.job.clock, number)
        incoming = tuple(wire for wire in came.tensors if wire is not None) if came is not None else ()
        self._work.load([unit.slice])
        output = run.stage.forward(unit, self._work.items(unit.slice), incoming, defer=self._defers(run))
        run.sums[number] = output.loss, output.examples
        if not run.place.is_last:
            yield run.crossed(number, output.outgoing, is_forward=True)

    def _backward(self, run: StageRun, number: int) -> Step:
        gradients: tuple[Wire | None, ...] = ()
        if not run.place.is_last:
            came = yield run.awaited(number, is_forward=False)
            assert came is not None
            gradients = came.tensors
            run.sums[number] = came.loss, came.examples
        into = run.stage.backward(self._work.unit(run.job.clock, number), gradients)
        if not run.place.is_first:
            yield run.crossed(number, tuple(into), is_forward=False)

    def _count(self, run: StageRun, number: int) -> None:
        """Add the unit's updates up along the tree; loss and examples go with partition 0, as in every job."""
        loss, examples = run.sums.pop(number)
        updates = run.stage.updates(self._work.unit(run.job.clock, number))
        folds = run.folds[run.bundle_of(number)]
        for at, (fold, values) in enumerate(zip(folds, updates, strict=True)):
            sums = (loss, examples) if run.place.is_first and not at else (0.0, 0)
            blocks = tuple(Dense(block) if block is not None else None for block in values)
            fold.add(1 << number, Contribution(blocks, *sums), given=True)


def new_run(job: Compute, place: StagePlace, stage: Stage) -> StageRun:
    """A machine's bundles of a clock, of which nothing is computed yet."""
    folds = {bundle: [Fold(deterministic=True) for _ in place.partitions] for bundle in job.bundles}
    return StageRun(job, place, stage, folds)
