"""The deal of a superstep's minibatches to workers. Workers and the planner use this one rule.

All minibatches of a run are in one order: unit u of clock c has position c x units + u. A superstep takes the next ones
that the view does not know to be counted everywhere, each worker as many as the plan says. A worker gets its own first:
those that a change dealt to it, else those of its share, whose items it has loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice

from agileml.core.protocol.job import Job
from agileml.core.protocol.superstep_messages import SuperstepPlan
from agileml.core.protocol.view import View
from straggler.coverage import Units, members, union


class SuperstepDeal:
    """The minibatches of every superstep under one view."""

    def __init__(self, job: Job, view: View) -> None:
        self.job = job
        self.view = view
        self.workers = tuple(view.workers())

    @property
    def end(self) -> int:
        """The position after the last minibatch of the run."""
        return self.job.clocks * self.job.units

    @cached_property
    def first(self) -> int:
        """Where the first superstep of the view begins; all before it is counted everywhere."""
        return next(self.positions(self.view.base * self.job.units), self.end)

    def positions(self, first: int) -> Iterator[int]:
        """The positions from `first` on of minibatches that some partition may lack, in order."""
        for clock in range(first // self.job.units, self.job.clocks):
            dealt = self.view.open_at.get(clock)
            units = self.job.all_units if dealt is None else union(bundle for _, bundle in dealt)
            for unit in members(units):
                if (position := clock * self.job.units + unit) >= first:
                    yield position

    def deal(self, plan: SuperstepPlan) -> Mapping[str, tuple[int, ...]]:
        """The positions of each worker, ascending."""
        left = dict(zip(self.workers, plan.units, strict=True))
        found: dict[str, list[int]] = {worker: [] for worker in self.workers}
        loose = []
        for position in islice(self.positions(plan.first), sum(plan.units)):
            if left.get(worker := self._home(position), 0):
                left[worker] -= 1
                found[worker].append(position)
            else:
                loose.append(position)
        for worker, count in left.items():
            taken, loose = loose[:count], loose[count:]
            found[worker] += taken
        assert not loose, (plan, loose)
        return {worker: tuple(sorted(positions)) for worker, positions in found.items()}

    def after(self, plan: SuperstepPlan) -> int:
        """Where the superstep after this one begins."""
        return next(islice(self.positions(plan.first), sum(plan.units), None), self.end)

    def _home(self, position: int) -> str:
        clock, unit = divmod(position, self.job.units)
        return self._holders.get(clock, self._homes)[unit]

    @cached_property
    def _homes(self) -> Mapping[int, str]:
        return _by_unit(self.view.share)

    @cached_property
    def _holders(self) -> Mapping[int, Mapping[int, str]]:
        return {clock: _by_unit(dealt) for clock, dealt in self.view.open}


def _by_unit(dealt: tuple[tuple[str, Units], ...]) -> Mapping[int, str]:
    return {unit: worker for worker, units in dealt for unit in members(units)}
