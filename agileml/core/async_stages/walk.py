"""One stage's way through a pipeline without a flush (PipeDream's 1F1B): clock after clock is in flight.

A clock is a minibatch: one update. Step t of stage l (0-based, of S) is the forward of clock t, then the backward of
clock t - d, where d = S - 1 - l stages stand behind it. Its weights are those after the clocks before t - d, the newest
of the stage, so they depend on t alone and not on which stage was faster. With stashed weights a backward uses those of
its forward (thesis 5.3.3: stage l is d updates behind); without, those of its step.

The first stage says where the clocks end, before a membership change or at the end of the job: a marker in place of
activations goes through all stages. Behind it a step has no forward, so what is in flight runs through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agileml.application import Application, Array, StagePlan
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.protocol.commands import Arrange, Compute, Computed, Crossed
from agileml.core.protocol.job import PipelineMode, PipelineRules
from agileml.core.protocol.messages import Crossing
from agileml.core.stage.walk import StagePlace, StageRun, StageWalker, Step, Walk, new_run
from straggler.coverage import members


def version_of(clock: int, first: int, behind: int) -> int:
    """The version of a stage's weights in step `clock`, when the pipeline was empty at clock `first` and `behind`
    stages stand behind the stage: in its first steps no backward has come back yet."""
    return max(first, clock - behind)


class AsyncStageWalker(StageWalker):
    """Takes the steps of this machine's stage. stashes: weights are kept for the backward."""

    def __init__(
        self, me: str, application: Application, plan: StagePlan, work: UnitComputer, *, stashes: bool
    ) -> None:
        super().__init__(me, application, plan, work, puts_off=False)
        self._stashes = stashes
        self._epoch = self._first = -1  # of the steps under way, and their first clock
        self._end: int | None = None  # the clock that is not begun

    def walk(
        self,
        job: Compute,
        stages: Arrange,
        blocks: Callable[[int], tuple[Array, ...]],
        now_s: Callable[[], float],
    ) -> Walk:
        """One step. The steps of an epoch come in order; ends early when the computation is aborted."""
        place = StagePlace.of(self._me, stages)
        stage = self._stage(place.first, place.stop)
        if self._epoch != job.timeline:
            self._epoch, self._first, self._end = job.timeline, job.clock, None
            stage.forget()
        started_s = now_s()
        newest = [blocks(partition)[0] for partition in range(place.first, place.stop)]
        if self._stashes:
            stage.use(newest)
        else:
            stage.overwrite(newest)
        begun = new_run(job, place, stage)
        if self._end is None:
            yield from self._forwards(begun)
        due = job.clock - (place.stages - 1 - place.number)
        if job.cursor.is_aborted or due < self._first or (self._end is not None and due >= self._end):
            return None
        ended = begun if due == job.clock else new_run(replace(job, clock=due), place, stage)
        yield from self._backwards(ended)
        if job.cursor.is_aborted:
            return None
        yield Computed(job.timeline, due, job.bundles[0], ended.totals(), now_s() - started_s)
        return due

    def _forwards(self, run: StageRun) -> Step:
        """The forwards of a clock, unless the clocks end before it."""
        job, place = run.job, run.place
        if not place.before and not job.begins:
            yield from self._end_at(run)
            return
        for number in members(job.bundles[0]):
            if job.cursor.is_aborted:
                return
            came: Crossing | None = None
            if place.before:
                came = yield run.awaited(number, is_forward=True)
                assert came is not None
                if came.ends:
                    yield from self._end_at(run)
                    return
            yield from self._forward(run, number, came)

    def _end_at(self, run: StageRun) -> Step:
        """Begin neither this clock nor a later one, and tell the stage behind."""
        job = run.job
        self._end = job.clock
        if run.place.behind:
            yield Crossed(run.place.behind, Crossing(job.timeline, job.clock, 0, True, (), ends=True))

    def _backwards(self, run: StageRun) -> Step:
        for number in members(run.job.bundles[0]):
            if run.job.cursor.is_aborted:
                return
            yield from self._backward(run, number)
            self._count(run, number)


def stage_walker(
    me: str, application: Application, plan: StagePlan, work: UnitComputer, rules: PipelineRules
) -> StageWalker:
    """The walker of a machine in a job with these rules."""
    if rules.flushes:
        return StageWalker(me, application, plan, work, puts_off=rules.puts_off)
    return AsyncStageWalker(me, application, plan, work, stashes=rules.mode is PipelineMode.STASH)
