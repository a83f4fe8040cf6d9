"""One stage's way through a pipeline without a flush (PipeDream's 1F1B): clock after clock is in flight.

A clock is a minibatch: one update. Step t of stage l (0-based, of S) is the forward of clock t, then the backward of
clock t - d, where d = S - 1 - l stages stand behind it. The stage's newest weights are then those after the clocks
before t - d, so they depend on t alone and not on which stage was faster. With stashed weights the forward and the
backward of a clock use these (thesis 5.3.3: stage l is d updates behind). With vertical sync they use those that the
first stage has in step t, after the clocks before t - S + 1; a stage keeps them until then. Without stashed weights a
backward uses the newest of its own step. A stage whose replicas exchange their sums while they compute the next step
has one clock less in step t: those before t - d - 1.

The first stage says where the clocks end, before a membership change or at the end of the job: a marker in place of
activations goes through all stages. Behind it a step has no forward, so what is in flight runs through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agileml.application import Application, Array, StagePlan
from agileml.core.async_stages.versions import age_of, lag_of, version_of
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.protocol.commands import Arrange, Compute, Crossed
from agileml.core.protocol.job import PipelineMode
from agileml.core.protocol.messages import Crossing
from agileml.core.stage.walk import StagePlace, StageRun, StageWalker, Step, Walk, new_run
from straggler.coverage import members, union

Blocks = tuple[Array, ...]  # of a partition, one of each table


@dataclass
class Unreported:
    """The seconds of a machine's steps that no sums have reported yet, and those in which it waited for neighbours."""

    now_s: Callable[[], float]
    since_s: float
    waited_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Waiting included: the driver of a walk, which knows it, takes it off."""
        return self.now_s() - self.since_s

    def reported(self) -> None:
        """Begin anew: sums have reported all until now."""
        self.since_s, self.waited_s = self.now_s(), 0.0


class AsyncStageWalker(StageWalker):
    """Takes the steps of this machine's stage. mode: which weights they read."""

    def __init__(
        self, me: str, application: Application, plan: StagePlan, work: UnitComputer, mode: PipelineMode
    ) -> None:
        super().__init__(me, application, plan, work, puts_off=False)
        self._mode = mode
        self._epoch = self._first = -1  # of the steps under way, and their first clock
        self._end: int | None = None  # the clock that is not begun
        self._versions: dict[int, list[Blocks]] = {}  # of the weights that this step or a later one reads

    def walk(
        self,
        job: Compute,
        stages: Arrange,
        blocks: Callable[[int], tuple[Array, ...]],
        now_s: Callable[[], float],
    ) -> Walk:
        """One step. The steps of an epoch come in order; ends early when the computation is aborted."""
        place = StagePlace.of(self._me, stages)
        stage = self._stage(place.here)
        if self._epoch != job.timeline:
            self._begin(job)
            stage.forget()
        unreported = Unreported(now_s, now_s())
        newest = [blocks(partition) for partition in place.partitions]
        if self._mode is PipelineMode.NONE:
            stage.overwrite(newest)
        else:
            stage.use(self._read(job.clock, place, newest))
        return (yield from self._step(new_run(job, place, stage), unreported))

    def _begin(self, job: Compute) -> None:
        """The steps of another epoch begin, with nothing in flight."""
        self._epoch, self._first, self._end = job.timeline, job.clock, None
        self._versions.clear()

    def _read(self, clock: int, place: StagePlace, newest: list[Blocks]) -> list[Blocks]:
        """The weights that the forward of a clock reads. newest: those that the stage has in the clock's step."""
        at = self._mode, place.stages, place.number
        self._versions[version_of(clock, self._first, lag_of(*at))] = newest
        wanted = version_of(clock, self._first, age_of(*at))
        self._versions = {version: kept for version, kept in self._versions.items() if version >= wanted}
        return self._versions[wanted]

    def _step(self, begun: StageRun, unreported: Unreported) -> Walk:
        """The forwards of a clock, then the backwards of the one that is due."""
        job, place = begun.job, begun.place
        for number in begun.units:
            if job.cursor.is_aborted or self._end is not None:
                break
            yield from self._enter(begun, number)
        due = job.clock - place.behind_count
        if job.cursor.is_aborted or due < self._first or (self._end is not None and due >= self._end):
            return None
        ended = begun if due == job.clock else new_run(replace(job, clock=due), place, begun.stage)
        yield from self._backwards(ended, unreported)
        return None if job.cursor.is_aborted else due

    def _enter(self, run: StageRun, number: int) -> Step:
        """The forward of a unit, unless the clocks end before its clock."""
        came: Crossing | None = None
        if not run.place.is_first:
            came = yield run.awaited(number, is_forward=True)
            assert came is not None
        if came.ends if came is not None else not run.job.begins:
            yield from self._end_at(run)
            return
        yield from self._forward(run, number, came)

    def _end_at(self, run: StageRun) -> Step:
        """Begin neither this clock nor a later one, and tell the machines behind that await a unit of this one."""
        job, place, mine = run.job, run.place, union(run.job.bundles)
        self._end = job.clock
        for node, units in () if place.is_last else place.stages[place.number + 1].replicas:
            awaited = next(members(units))  # first of all units of the clock
            if mine >> awaited & 1:
                yield Crossed(node, Crossing(job.timeline, job.clock, awaited, True, (), ends=True))

    def _backwards(self, run: StageRun, unreported: Unreported) -> Step:
        for number in run.units:
            if run.job.cursor.is_aborted:
                return
            yield from self._backward(run, number)
            self._count(run, number)
            computed = run.counted(run.bundle_of(number), unreported.seconds)
            if computed is not None and not run.job.cursor.is_aborted:
                yield computed
                unreported.reported()
