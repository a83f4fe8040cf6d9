"""One stage's way through a pipeline with two versions of the weights: the clocks follow each other unit by unit.

Step t of a stage with d stages behind it takes the units of clock t in order. After the forward of each comes the
backward of the unit d units before it: for the first d of them a unit of clock t - 1, whose last one ends that clock.
So a clock begins when the one before the last is applied, at all stages, and reads those weights:
w^(t+1) = w^(t) - nu grad f(w^(t-1)) (Narayanan et al., "Memory-efficient pipeline-parallel DNN training", 2021).
A stage never needs more than two versions, and d units are in flight, not d clocks.
"""

from __future__ import annotations

from agileml.core.async_stages.walk import AsyncStageWalker, Unreported
from agileml.core.protocol.commands import Compute
from agileml.core.protocol.messages import Crossing
from agileml.core.stage.walk import Awaited, StageRun, Walk


class DoubleBufferedWalker(AsyncStageWalker):
    """Takes the steps of this machine's stage. A clock has at least as many units as stages stand behind one."""

    _open: StageRun | None = None  # the clock before the step's, of which units are in flight
    _rest_s = 0.0  # seconds of computing after the last sums, which are there in the middle of a step

    def _begin(self, job: Compute) -> None:
        super()._begin(job)
        self._open, self._rest_s = None, 0.0

    def _step(self, begun: StageRun, unreported: Unreported) -> Walk:
        unreported.since_s -= self._rest_s  # the next sums report it
        done = yield from _noting_waits(self._take_units(begun, unreported), unreported)
        self._rest_s = unreported.seconds - unreported.waited_s
        return done

    def _take_units(self, begun: StageRun, unreported: Unreported) -> Walk:
        job, behind, units = begun.job, begun.place.behind_count, begun.units
        assert behind <= len(units), (behind, units)
        before, self._open = self._open, None
        done: int | None = None
        for at, number in enumerate(units):
            if job.cursor.is_aborted:
                return None
            if self._end is None:
                yield from self._enter(begun, number)
            run = begun if at >= behind else before
            if run is None or (run is begun and self._end is not None):
                continue
            back = units[at - behind]  # the last ones, of the clock before, where this is negative
            yield from self._backward(run, back)
            self._count(run, back)
            computed = run.counted(run.bundle_of(back), unreported.seconds)
            if computed is not None and not job.cursor.is_aborted:
                yield computed
                unreported.reported()
                done = run.job.clock
        if self._end is None and done != job.clock:
            self._open = begun
        return done


def _noting_waits(step: Walk, unreported: Unreported) -> Walk:
    """A step, and the seconds that it waits for messages of neighbours."""
    answer: Crossing | None = None
    while True:
        try:
            found = step.send(answer)
        except StopIteration as end:
            last_clock: int | None = end.value
            return last_clock
        began_s = unreported.now_s()
        answer = yield found
        if isinstance(found, Awaited):
            unreported.waited_s += unreported.now_s() - began_s
