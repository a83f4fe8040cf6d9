"""One stage's way through a clock of a pipeline: the fixed list of its actions, taken one after the other.

The list is 1F1B with a flush for the units of a bundle, or the zero-bubble order. A walk stops where it needs data of a
neighbour, and where it has results for others: its driver (a thread, or a simulation) supplies the data and sends the
results. So it neither waits nor sends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cache

from agileml.application import Application, Array, Stage, StagePlan, Wire
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.parameters.fold import Contribution, Fold
from agileml.core.parameters.layout import Dense
from agileml.core.protocol.commands import Arrange, Compute, Computed, Crossed
from agileml.core.protocol.messages import Crossing
from pipeline.schedule.actions import Action, Kind
from pipeline.schedule.policies import flush
from straggler.coverage import Units, members


@dataclass(frozen=True, order=True)
class Awaited:
    """The message that a stage needs from a neighbour for its next action: activations, or gradients coming back."""

    epoch: int
    clock: int
    unit: int
    is_forward: bool


# Yields what it has for others, and what it needs; what it needs is sent into it. Returns the clock whose messages, and
# those of clocks before it, are of no use here any more; None: there is none.
Walk = Generator[Awaited | Crossed | Computed, Crossing | None, int | None]
Step = Generator[Awaited | Crossed | Computed, Crossing | None, None]


class Crossings:
    """The messages of neighbouring stages, until the clock is over here. A message may come twice, and before its
    epoch's stages are known."""

    def __init__(self) -> None:
        self.stages: Arrange | None = None
        self._kept: dict[Awaited, Crossing] = {}

    def arrange(self, command: Arrange) -> None:
        """The stages of an epoch are known; what older epochs sent is dropped."""
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
        """All of a clock is computed here: its messages, also those that come again, are of no use."""
        over = epoch, clock
        self._kept = {at: crossing for at, crossing in self._kept.items() if (at.epoch, at.clock) > over}


@dataclass(frozen=True)
class StagePlace:
    """A machine's place among the stages. before, behind: its neighbours, "" where there is none."""

    number: int
    stages: int
    first: int
    stop: int
    before: str
    behind: str

    @property
    def behind_count(self) -> int:
        """Stages behind this one."""
        return self.stages - 1 - self.number

    @classmethod
    def of(cls, machine: str, stages: Arrange) -> StagePlace:
        """Where a machine stands."""
        names = [node for node, _, _ in stages.stages]
        at, count = names.index(machine), len(names)
        _, first, stop = stages.stages[at]
        return cls(
            at, count, first, stop, names[at - 1] if at else "", names[at + 1] if at + 1 < count else ""
        )


@dataclass
class StageRun:
    """A bundle's way through this stage."""

    job: Compute
    place: StagePlace
    stage: Stage
    folds: list[Fold]
    sums: dict[int, tuple[float, int]] = field(default_factory=dict)  # by unit: loss, examples

    def awaited(self, number: int, *, is_forward: bool) -> Awaited:
        """The key of the message that a neighbour sends for a unit."""
        return Awaited(self.job.timeline, self.job.clock, number, is_forward)

    def crossed(self, to: str, number: int, tensors: tuple[Wire | None, ...], *, is_forward: bool) -> Crossed:
        """The command to send a unit's tensors to a neighbour."""
        sums = (0.0, 0) if is_forward else self.sums[number]
        return Crossed(to, Crossing(self.job.timeline, self.job.clock, number, is_forward, tensors, *sums))

    def totals(self) -> tuple[tuple[int, Contribution], ...]:
        """The sums of all units, by partition."""
        return tuple((self.place.first + at, fold.total()) for at, fold in enumerate(self.folds))


class StageWalker:
    """Computes what this machine's stage has to of a clock. plan: where the run may cut the application's stages."""

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
        place = StagePlace.of(self._me, stages)
        stage = self._stage(place.first, place.stop)
        for bundle in job.bundles:
            started_s = now_s()
            stage.forget()
            stage.use([blocks(partition) for partition in range(place.first, place.stop)])
            run = new_run(job, place, stage)
            actions = _actions(place.stages, bundle.bit_count(), self._puts_off)[place.number]
            yield from self._bundle(run, bundle, actions)
            if job.cursor.is_aborted:
                return None
            yield Computed(job.timeline, job.clock, bundle, run.totals(), now_s() - started_s)
        return job.clock

    def _bundle(self, run: StageRun, bundle: Units, actions: tuple[Action, ...]) -> Step:
        units = list(members(bundle))
        for action in actions:
            if run.job.cursor.is_aborted:
                return
            number = units[action.minibatch - 1]
            if action.kind is Kind.FORWARD:
                came = (yield run.awaited(number, is_forward=True)) if run.place.before else None
                yield from self._forward(run, number, came)
            elif action.kind is Kind.BACKWARD:
                yield from self._backward(run, number)
            if action.kind is Kind.WEIGHTS or (action.kind is Kind.BACKWARD and not self._defers(run)):
                self._count(run, number)

    def _stage(self, first: int, stop: int) -> Stage:
        if self._made is None or self._made[0] != (first, stop):
            stages = self._application.stages()
            assert stages is not None, self._application
            self._made = (first, stop), stages.stage(self._plan.borders, first, stop)
        return self._made[1]

    def _defers(self, run: StageRun) -> bool:
        """The first stage puts nothing off: it has no gradient to send back."""
        return self._puts_off and bool(run.place.before)

    def _forward(self, run: StageRun, number: int, came: Crossing | None) -> Step:
        """The forward of a unit. came: the activations of the stage before."""
        assert (came is not None) == bool(run.place.before), (run.place, came)
        unit = self._work.unit(run.job.clock, number)
        incoming = tuple(wire for wire in came.tensors if wire is not None) if came is not None else ()
        self._work.load([unit.slice])
        output = run.stage.forward(unit, self._work.items(unit.slice), incoming, defer=self._defers(run))
        run.sums[number] = output.loss, output.examples
        if run.place.behind:
            yield run.crossed(run.place.behind, number, output.outgoing, is_forward=True)

    def _backward(self, run: StageRun, number: int) -> Step:
        gradients: tuple[Wire | None, ...] = ()
        if run.place.behind:
            came = yield run.awaited(number, is_forward=False)
            assert came is not None
            gradients = came.tensors
            run.sums[number] = came.loss, came.examples
        into = run.stage.backward(self._work.unit(run.job.clock, number), gradients)
        if run.place.before:
            yield run.crossed(run.place.before, number, tuple(into), is_forward=False)

    def _count(self, run: StageRun, number: int) -> None:
        """Add the unit's updates up along the tree; loss and examples go with partition 0, as in every job."""
        loss, examples = run.sums.pop(number)
        updates = run.stage.updates(self._work.unit(run.job.clock, number))
        for at, (fold, values) in enumerate(zip(run.folds, updates, strict=True)):
            sums = (loss, examples) if not run.place.before and not at else (0.0, 0)
            blocks = tuple(Dense(block) if block is not None else None for block in values)
            fold.add(1 << number, Contribution(blocks, *sums), given=True)


def new_run(job: Compute, place: StagePlace, stage: Stage) -> StageRun:
    """A bundle that nothing is computed of yet."""
    return StageRun(job, place, stage, [Fold(deterministic=True) for _ in range(place.first, place.stop)])


@cache
def _actions(stages: int, units: int, puts_off: bool) -> tuple[tuple[Action, ...], ...]:
    """The lists of all stages for one flush of so many units."""
    return flush((1,) * stages, units, units, zero_bubble=puts_off).workers
