"""Tracks which steps of each partition the run's log has, in a job in which every minibatch is a step of its own.

The parameters depend on the order of the steps and on the versions that each of them read. So the controller commits a
cut only when the log has all steps in it: after a rollback to the cut the log is complete.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from agileml.core.protocol.superstep_messages import StepsReceived, StepsTaken, SuperstepChosen
from agileml.events.run import StepsLogged, SuperstepPlanned

# Supersteps from one cut to the next: one must end at the cut, which may be a worse moment than the planner's choice.
APART = 8


class StepLog:
    """The steps and supersteps of the timeline that machines have reported to this controller.

    A step counts as logged once the driver has written it. Until then its owner keeps it, because this controller may
    die before the driver has fetched it.
    """

    def __init__(self) -> None:
        self._received: dict[int, int] = {}  # by partition, steps that were passed on to the driver
        self._written: dict[int, int] = {}  # by partition, steps in the log
        self._minibatches = 0.0  # of a superstep, on average

    def chosen(self, message: SuperstepChosen) -> SuperstepPlanned:
        """Learn the size of a planned superstep, and return the event for the log."""
        units = dict(message.units)
        count = sum(units.values())
        self._minibatches = 0.5 * (self._minibatches + count) if self._minibatches else float(count)
        return SuperstepPlanned(message.first, units, message.predicted_s, message.reason)

    def least_clocks(self, units: int) -> int:
        """The least clocks, of `units` minibatches each, from one cut to the next; 0 before the first plan."""
        return math.ceil(APART * self._minibatches / units)

    def add(self, message: StepsTaken, timeline: int) -> StepsLogged | None:
        """Take the steps that an owner reports, and return an event with the new ones.

        The log has the steps that the owner does not keep: it drops steps only when a controller confirms them. A
        message that begins after the steps that this controller knows adds nothing: the owner sent those between to an
        earlier controller, and sends them again.
        """
        known = max(self._received.get(message.partition, message.kept), message.kept)
        fresh = message.taken[known - message.first :] if message.first <= known else ()
        self._received[message.partition] = known + len(fresh)
        self.written(message.partition, message.kept)
        if not fresh:
            return None
        positions = tuple(step.position for step in fresh)
        return StepsLogged(message.partition, timeline, known, positions, tuple(step.reads for step in fresh))

    def written(self, partition: int, steps: int) -> None:
        """Record that the log has the first `steps` steps of a partition."""
        self._written[partition] = max(steps, self._written.get(partition, 0))

    def acknowledgement(self, message: StepsTaken) -> StepsReceived:
        """The answer to an owner: how many steps of the partition this controller knows, and how many the log has."""
        known = self._received[message.partition], self._written[message.partition]
        return StepsReceived(message.epoch, message.partition, *known)

    def has_all(self, partitions: Iterable[int], steps: int) -> bool:
        """True when the first `steps` steps of each partition are in the log."""
        return all(self._written.get(partition, -1) >= steps for partition in partitions)

    def roll_back(self) -> None:
        """Forget all steps: training returns to a cut and takes them again, with other gradients."""
        self._received.clear()
        self._written.clear()
