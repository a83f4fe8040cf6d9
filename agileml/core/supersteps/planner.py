"""The supersteps of one view, at the server of partition 0: each is fixed once, from predicted push times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice

from agileml.core.protocol.job import Job
from agileml.core.protocol.superstep_messages import SuperstepChosen, SuperstepPlan
from agileml.core.protocol.supersteps import SuperstepDeal
from agileml.core.protocol.view import View
from straggler.elasticbsp import ElasticBsp, Superstep

SECOND_NS = 1_000_000_000
MUCH = 1.5  # supersteps: two follow where more is left


class SuperstepPlanner:
    """Fixes the plan of each superstep, and reports plans that differ from the last reported one.

    A worker's next iterations should each take as long as those of its last superstep did on average, from push to
    push as they arrive here, the first from the superstep's beginning. (Zhao et al. take the last iteration alone. That
    follows a change of speed sooner, but its noise counts as many times as the worker has iterations.) Measurements
    only guide the plan, so cuts do not contain them; `known`: those of the planner of the view before, where partition
    0 has not moved.
    """

    def __init__(
        self, job: Job, view: View, tell: Callable[[SuperstepChosen], None], known: Mapping[str, int]
    ) -> None:
        assert job.elastic is not None
        self.epoch = view.epoch
        self._most = job.elastic.range
        self._units = job.units
        self._begun = max(view.open_at, default=-1)  # the last clock of which something may be counted
        self._deal = SuperstepDeal(job, view)
        self._tell = tell
        self._policy = ElasticBsp(self._most, job.elastic.objective)
        self.intervals_ns: dict[str, int] = {}
        for worker in self._deal.workers:
            if worker in known:
                self._observe(worker, known[worker])
        self._plan: SuperstepPlan | None = None
        self._announced: tuple[int, ...] = ()
        self._next = self._deal.first
        self._working: set[str] = set()  # workers that have minibatches of the superstep
        self._begun_s = 0.0  # when the superstep began
        self._counted: Counter[str] = Counter()  # by worker, its minibatches of the superstep

    def meets_at(self, clock: int) -> bool:
        """True if a superstep can still end where a clock begins, with nothing of later clocks counted anywhere.

        Not if one that is fixed goes on beyond it, or if the view before this one did.
        """
        return clock > self._begun and clock * self._units >= self._next

    @property
    def version(self) -> int:
        """The first clock at which all can meet."""
        return max(self._begun + 1, -(-self._next // self._units))

    def plan(self, worker: str, first: int, stop: int, now_s: float) -> SuperstepPlan | None:
        """The superstep that begins at `first`, and ends at `stop` at the latest, for a worker that has nothing to do
        before it; None if it may not begin yet.

        It may when every partition has counted all minibatches of the superstep before. Partition 0 alone is no proof:
        after a change another partition may lack minibatches that it counted long ago. A worker that asks for an older
        superstep had nothing in it, and gets the newest.
        """
        if self._plan is not None and first <= self._plan.first:
            return self._plan
        assert first == self._next, (first, self._next)
        self._working.discard(worker)
        return self._fix(stop, now_s) if not self._working and first < stop else None

    def _fix(self, stop: int, now_s: float) -> SuperstepPlan:
        workers = self._deal.workers
        ahead = islice(self._deal.positions(self._next), 2 * self._most * len(workers))
        found = self._choose(sum(1 for position in ahead if position < stop))
        plan = self._plan = SuperstepPlan(self._next, found.units)
        self._next = self._deal.after(plan)
        self._working = {worker for worker, units in zip(workers, plan.units, strict=True) if units}
        self._begun_s = now_s
        self._counted.clear()
        if found.units != self._announced:
            self._announced = found.units
            units = tuple(zip(workers, found.units, strict=True))
            predicted_s = found.barrier_ns / SECOND_NS
            new = [worker for worker in workers if worker not in self.intervals_ns]
            reason = f"not measured yet: {', '.join(new)}" if new else found.reason
            self._tell(SuperstepChosen(self.epoch, plan.first, units, predicted_s, reason))
        return plan

    def _choose(self, left: int) -> Superstep:
        """The best superstep of at most `left` minibatches; all of them where little would be left for another."""
        workers = tuple(range(len(self._deal.workers)))
        found = self._policy.plan(0, workers, most=left)
        count = sum(found.units)
        if count < left < MUCH * count and len(self.intervals_ns) == len(workers):
            rest = self._policy.rest(0, workers, left)
            if max(rest.units) <= self._most:
                return rest
        return found

    def counted(self, worker: str, now_s: float) -> None:
        """Record a worker's minibatch that was counted."""
        if self._plan is not None:  # else a push of the view before, which no plan of this one dealt
            self._counted[worker] += 1
            mean_s = (now_s - self._begun_s) / self._counted[worker]
            self._observe(worker, max(1, int(mean_s * SECOND_NS)))

    def _observe(self, worker: str, interval_ns: int) -> None:
        self.intervals_ns[worker] = interval_ns
        self._policy.observe(self._deal.workers.index(worker), interval_ns)
