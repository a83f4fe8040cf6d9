"""The plans of a view's clocks, at the server of partition 0: fixed once each, from the measurements of the workers.

Workers learn a plan only from the answer of partition 0 to their pull. The first answer for a clock fixes the plan
that goes with it, and every later answer repeats it. With an all-reduce every machine has partition 0 and plans for its
own worker: all make the same plans, because all get the same measurements with the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agileml.application import Array
from agileml.core.protocol.deal import Deal
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Params, PlannedParams, Pull, RemedyChosen, Replanned, TimedPush
from agileml.core.protocol.view import ClockPlan, View

KEPT = 4  # plans; a worker may ask again for the clock before the newest
NOTABLE = 0.05  # the share of the units that must have moved before a plan is announced again


@dataclass
class _Work:
    """A worker's contributions to one clock so far."""

    units: int = 0
    bundles: int = 0
    compute_s: float = 0.0
    last_s: float = 0.0  # when the last one arrived
    expected: float = 0.0  # units per second in the next clock, as the worker said last


class ClockPlans:
    """Fixes the plan of each clock of one view; reports choices, and plans that differ from the last reported
    one."""

    def __init__(self, job: Job, view: View, tell: Callable[[Replanned | RemedyChosen], None]) -> None:
        assert job.balancer is not None
        self.epoch = view.epoch
        self._job = job
        self._tell = tell
        self._deal = Deal(job, view)
        self._workers = tuple(view.workers())
        self._home = tuple(units.bit_count() for _, units in view.share)
        sums_of = self._deal.sums_by if job.sends_whole_sums else None
        self._balancer = job.balancer(job.units, dict(zip(self._workers, self._home, strict=True)), sums_of)
        self._announced = self._home
        self._fixed: dict[int, ClockPlan] = {}
        self._newest = -1  # the last clock whose plan is fixed
        self._work: dict[int, dict[str, _Work]] = {}  # by clock and worker
        self._began_s: dict[int, float] = {}  # by clock: when its parameters were there

    # -- plans ----------------------------------------------------------------------------------------------

    def answer(self, pull: Pull, version: int, blocks: tuple[Array, ...]) -> Params:
        """The answer of partition 0 to a pull, with the plan that goes with its clock."""
        plan = self.for_answer(pull.clock)
        if plan is None:
            return Params(pull.epoch, pull.partition, pull.clock, version, blocks)
        return PlannedParams(pull.epoch, pull.partition, pull.clock, version, blocks, plan)

    def for_answer(self, clock: int) -> ClockPlan | None:
        """The plan that the parameters for `clock` carry: its own or, where rows depend on units, that of the next."""
        of = clock + self._job.lead
        if of > self._newest and of < self._job.clocks and self._deal.is_planned(of):
            self._fix(of)
        return self._fixed.get(of)

    def _fix(self, clock: int) -> None:
        found = self._balancer.plan(self._workers)
        assert sum(found.units) == self._job.units and min(found.units) > 0, found
        self._fixed[clock] = ClockPlan(clock, found.units, found.helps)
        self._newest = clock
        if len(self._fixed) > KEPT:
            del self._fixed[min(self._fixed)]
        if (chosen := found.chosen) is not None:
            self._tell(RemedyChosen(self.epoch, clock, chosen.remedy.value, chosen.reason))
        moved = (
            sum(abs(now - announced) for now, announced in zip(found.units, self._announced, strict=True)) / 2
        )
        if moved > NOTABLE * self._job.units:
            self._announced = found.units
            units = tuple(zip(self._workers, found.units, strict=True))
            self._tell(Replanned(self.epoch, clock, units, found.predicted_s, found.reason))

    @property
    def fixed(self) -> tuple[ClockPlan, ...]:
        """The newest plans, which hold for all clocks that may be open."""
        return tuple(self._fixed.values())

    # -- measurements ---------------------------------------------------------------------------------------

    def counted(self, worker: str, push: TimedPush, now_s: float) -> None:
        """Record a worker's bundle that was counted."""
        work = self._work.setdefault(push.clock, {}).setdefault(worker, _Work())
        work.units += push.bundle.bit_count()
        work.bundles += 1
        work.compute_s += push.compute_s
        work.last_s = now_s
        work.expected = push.expected

    def advanced(self, version: int, now_s: float) -> None:
        """Learn the speeds from the clocks before `version`, which are complete."""
        for clock in sorted(clock for clock in self._work if clock < version):
            work, began_s = self._work.pop(clock), self._began_s.pop(clock, None)
            if clock in self._deal.view.open_at:
                continue  # parts of it were computed under another view
            for worker in self._workers:
                if (done := work.get(worker)) is not None:
                    elapsed_s = done.last_s - began_s if began_s is not None else done.compute_s
                    self._observe(worker, done.units, done.bundles, done.compute_s, elapsed_s, done.expected)
            if began_s is not None:
                self._balancer.clock_took(now_s - began_s)
        self._began_s = {version: now_s}

    def measured(self, clock: int, compute_s: Mapping[str, float], expected: Mapping[str, float]) -> None:
        """Take the seconds that each machine of the group computed for a clock, and the units per second that it
        expects of the next one, with an all-reduce."""
        plan = self._fixed.get(clock)
        if clock in self._deal.view.open_at or (plan is None and self._deal.is_planned(clock)):
            return
        for worker, units in zip(self._workers, plan.units if plan else self._home, strict=True):
            self._observe(worker, units, 1, compute_s[worker], compute_s[worker], expected[worker])

    def _observe(
        self, worker: str, units: int, sums: int, compute_s: float, elapsed_s: float, expected: float
    ) -> None:
        if compute_s > 0:
            other_s = max(0.0, elapsed_s - compute_s)
            self._balancer.observe(
                worker, units, compute_s, other_s=other_s, sums=sums, expected=expected or None
            )
