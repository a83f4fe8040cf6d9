"""A partition where every minibatch is a step of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from agileml.core.node.shard.shard import Shard
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.loss_scale import ClockSum
from agileml.core.parameters.step_terms import StepTerms
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Cut, MinibatchPush, ShardCopy
from agileml.core.protocol.superstep_messages import StepTaken
from agileml.core.protocol.view import CutId
from agileml.core.supersteps.kept_steps import KeptSteps
from straggler.coverage import Units, Verdict


class MinibatchShard(Shard):
    """Takes a step for each minibatch that arrives, and remembers their order until it is in the log.

    The position in the order of all minibatches needs no state of its own: each is one step, so the number of steps is
    that of the minibatches that are counted.
    """

    def __init__(self, job: Job, cut: Cut) -> None:
        super().__init__(job, cut)
        self.kept = KeptSteps(self.steps)

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return self.units_counted

    def is_at(self, clock: int) -> bool:
        """True where a clock begins and no minibatch of it is counted: a cut then holds whole clocks alone."""
        return self.version == clock and not self.counted

    def take(self, push: MinibatchPush, now_s: float, *, given: bool) -> Verdict:
        """Take the step of a minibatch, unless it is taken already."""
        assert push.bundle.bit_count() == 1, push.bundle
        verdict = self.push(push.clock, push.bundle, push.contribution, now_s, given=given)
        if verdict is Verdict.COUNT:
            position = push.clock * self.job.units + _number(push.bundle)
            self.kept.add(StepTaken(position, push.reads))
        return verdict

    def _step_along(self, contribution: Contribution, clock: int, bundle: Units) -> None:
        """A whole step along the minibatch's own mean: an update of a unit is its share of a clock's."""
        self._step(ClockSum(contribution, StepTerms(scale=self.job.units)), self.steps - 1)

    def copy(self, have: CutId | None = None) -> ShardCopy:
        """All state that another server needs to take over."""
        return replace(super().copy(have), taken=self.kept.taken)

    @classmethod
    def restored(cls, job: Job, copy: ShardCopy) -> Self:
        """The shard that `copy` was taken from."""
        shard = super().restored(job, copy)
        shard.kept = KeptSteps(shard.steps - len(copy.taken), copy.taken)
        return shard


def _number(unit: Units) -> int:
    return unit.bit_length() - 1
