"""The deal: which worker computes which units of a clock. Workers, all-reduce, changes and the stage rule share it.

1. A clock that the view lists in `open` is dealt as the list says.
2. In a job with a balancer every other clock has a plan: how many units each worker gets. Partition 0 fixes it once in
   an epoch and sends it with the clock's parameters, or `lead` clocks earlier. The first clocks of a view come too
   soon for that; for them, as in a job without a balancer, the view's share holds.
3. The units themselves follow from the plan and the share: those with too many give their tails.

Within an epoch all machines must use the same plan of a clock. That is all that is needed for each unit to count once:
plans of different epochs never meet, since a change deals all that is open anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from agileml.core.protocol.job import Job
from agileml.core.protocol.view import NOBODY, ClockPlan, Share, View
from straggler.coverage import Units, aligned_subtrees, count_subtrees, members, ranges, union
from straggler.lbbsp.unit_sets import units_of_counts

KEPT = 4  # plans; a worker is at most one clock behind partition 0


def bundles_of(job: Job, units: Units) -> tuple[Units, ...]:
    """The bundles in which one worker contributes a set of units: aligned subtrees in a deterministic job, otherwise
    one, or with a pool equal ones of no more than may be drawn at once."""
    if job.deterministic:
        return tuple(aligned_subtrees(units))
    if job.draw_units is not None and units.bit_count() > job.draw_units:
        return _in_pieces(units, job.draw_units)
    return (units,) if units else ()


def _in_pieces(units: Units, most: int) -> tuple[Units, ...]:
    """As few sets of at most `most` units as can be, whose sizes differ by at most one."""
    numbers = list(members(units))
    count = -(-len(numbers) // most)
    edges = [len(numbers) * piece // count for piece in range(count + 1)]
    return tuple(union(1 << number for number in numbers[a:b]) for a, b in pairwise(edges))


class Deal:
    """The bundles of every clock under one view, as far as the plans are known."""

    def __init__(self, job: Job, view: View, plans: Iterable[ClockPlan] = ()) -> None:
        self.job = job
        self.view = view
        self._share = {worker: bundles_of(job, units) for worker, units in view.share}
        self._plans: dict[int, ClockPlan] = {}
        self._planned: dict[tuple[int, ...], dict[str, tuple[Units, ...]]] = {}  # by the units of a plan
        for plan in plans:
            self.learn(plan)

    def is_planned(self, clock: int) -> bool:
        """True for a clock that partition 0 plans."""
        if self.job.balancer is None or clock in self.view.open_at:
            return False
        return clock >= self.view.base + 2 * self.job.lead

    def learn(self, plan: ClockPlan) -> None:
        """Take a plan that partition 0 has fixed."""
        assert self.is_planned(plan.clock), (plan, self.view)
        known = self._plans.setdefault(plan.clock, plan)
        assert known == plan, f"two plans of one clock in epoch {self.view.epoch}: {known} and {plan}"
        if len(self._plans) > KEPT:
            del self._plans[min(self._plans)]

    def helps(self, clock: int) -> bool:
        """True for a clock in which workers help each other; of a planned clock its plan says so."""
        if self.job.helping is None or clock in self.view.open_at:
            return False
        if self.job.balancer is None:
            return True
        return clock in self._plans and self._plans[clock].helps

    def bundles(self, clock: int, worker: str) -> tuple[Units, ...] | None:
        """The bundles of a clock that a worker computes; None while its plan is not known."""
        dealt = self.view.open_at.get(clock)
        if self.job.pipeline is not None:  # all units go through all stages
            return self._bundles_at_stage(dealt, worker)
        if dealt is not None:
            return tuple(bundle for node, bundle in dealt if node == worker)
        if worker not in self._share:
            return ()
        if not self.is_planned(clock):
            return self._share[worker]
        plan = self._plans.get(clock)
        return self._bundles_by(plan)[worker] if plan is not None else None

    def _bundles_at_stage(
        self, dealt: tuple[tuple[str, Units], ...] | None, worker: str
    ) -> tuple[Units, ...]:
        """The bundles of a replica: its units, where these are open whichever machine the view names."""
        stage = self.view.stage_at.get(worker)
        if stage is None:
            return ()
        own = dict(stage.replicas)[worker]
        wanted = (own,) if dealt is None else tuple(bundle & own for _, bundle in dealt)
        return tuple(bundle for units in wanted for bundle in bundles_of(self.job, units))

    def partitions(self, worker: str) -> tuple[int, ...]:
        """The partitions that a worker reads and pushes: all, in a pipeline those of its stage."""
        if self.job.pipeline is not None:
            stage = self.view.stage_at.get(worker)
            return tuple(range(stage.first, stage.stop)) if stage is not None else ()
        return tuple(range(self.job.layout.partitions))

    def assignments(self, clock: int) -> tuple[tuple[str, Units], ...]:
        """All (worker, bundle) pairs of a clock; none while its plan is not known."""
        dealt = self.view.open_at.get(clock)
        if dealt is not None:
            return dealt
        by_worker: Mapping[str, tuple[Units, ...]] = self._share
        if self.is_planned(clock):
            plan = self._plans.get(clock)
            by_worker = self._bundles_by(plan) if plan is not None else {}
        return tuple((worker, bundle) for worker, bundles in by_worker.items() for bundle in bundles)

    def sums_by(self, units: tuple[int, ...]) -> tuple[int, ...]:
        """How many bundles each worker contributes in a deterministic job, with so many units each."""
        dealt = units_of_counts(self.view.share, dict(zip(self._share, units, strict=True)))
        return tuple(count_subtrees(dealt[worker]) for worker in self._share)

    def _bundles_by(self, plan: ClockPlan) -> Mapping[str, tuple[Units, ...]]:
        """The bundles of each worker under a plan. Plans in a row are often equal, so the last ones are kept."""
        found = self._planned.get(plan.units)
        if found is None:
            counts = dict(zip(self._share, plan.units, strict=True))
            units = units_of_counts(self.view.share, counts)
            if len(self._planned) >= KEPT:
                self._planned.clear()
            found = {worker: bundles_of(self.job, units[worker]) for worker in self._share}
            self._planned[plan.units] = found
        return found


# -- shares and slices --------------------------------------------------------------------------------------


def share_of_slices(job: Job, workers: Sequence[str]) -> Share:
    """The share that gives each slice to a worker; `workers[s]` is the worker of slice s."""
    units: dict[str, Units] = {}
    for index, node in enumerate(workers):
        units[node] = units.get(node, 0) | job.units_of_slice(index)
    return tuple(units.items())


def workers_of_slices(job: Job, share: Share) -> tuple[str, ...]:
    """The reverse of `share_of_slices`: the worker of each slice's first unit, NOBODY where there is none."""
    workers = [NOBODY] * job.slices
    for node, units in share:
        for start, stop in ranges(units):
            first, last = -(-start // job.parts), -(-stop // job.parts)
            workers[first:last] = [node] * (last - first)
    return tuple(workers)
