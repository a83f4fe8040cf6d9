"""Optimizers where every minibatch is a step of its own: steps are counted in minibatches, schedules in clocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agileml.core.parameters.groups import GroupedOptimizer
from agileml.core.parameters.learning_rate import Schedule
from agileml.core.parameters.optimizer import Optimizer, Shaping


@dataclass(frozen=True)
class ByPosition:
    """A schedule of clocks for steps of minibatches, `units` to a clock."""

    schedule: Schedule
    units: int

    def factor(self, clock: int) -> float:
        """The factor of the step number `clock` (0-based)."""
        return self.schedule.factor(clock // self.units)


def per_minibatch(optimizer: Optimizer, units: int) -> Optimizer:
    """The same rule for one step a minibatch: its `clock` is the number of the step.

    Adam's bias correction goes by steps, the learning rate by the clock that so many steps make.
    """
    if isinstance(optimizer, GroupedOptimizer):
        by_name = {name: per_minibatch(rule, units) for name, rule in optimizer.by_name.items()}
        return GroupedOptimizer(per_minibatch(optimizer.default, units), by_name)
    assert isinstance(optimizer, Shaping), optimizer
    if optimizer.schedule is None:
        return optimizer
    return replace(optimizer, schedule=ByPosition(optimizer.schedule, units))
