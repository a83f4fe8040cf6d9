"""Square sums of each clock at one shard: its own, and those of other partitions that its step needs."""

from __future__ import annotations

from collections.abc import Collection

from agileml.core.parameters.gradient_norm import SquareSums
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import ShardCopy, SquaresOfClocks, SumsOf


class ClockSums:
    """The sums of the clocks that some partition may not have applied yet."""

    def __init__(
        self, partition: int, needed: Collection[int], slack: int, own: SquaresOfClocks = ()
    ) -> None:
        """needed: the partitions whose sums a step waits for, this one included."""
        self._needed = sorted(needed)
        # A worker that pushes clock t has read every partition at t - slack or later, so when this one has applied v
        # clocks, every other one has applied v - 1 - slack of them.
        self._behind = 1 + slack
        self.partition = partition
        self._sums: dict[int, dict[int, SquareSums]] = {clock: {partition: sums} for clock, sums in own}
        self._new: list[int] = []  # clocks whose own sums were not sent yet

    @property
    def kept(self) -> SquaresOfClocks:
        """This partition's own sums."""
        return tuple(
            (clock, sums[self.partition])
            for clock, sums in sorted(self._sums.items())
            if self.partition in sums
        )

    def own(self, clock: int) -> SquareSums | None:
        """This partition's own sums of a clock; None before they are added up."""
        return self._sums.get(clock, {}).get(self.partition)

    def add(self, clock: int, sums: SquareSums) -> None:
        """Take this partition's own sums."""
        assert self.own(clock) is None, clock
        self._sums.setdefault(clock, {})[self.partition] = sums
        self._new.append(clock)

    def take_new(self) -> SquaresOfClocks:
        """Return the own sums that were not sent yet, and count them as sent."""
        new, self._new = self._new, []
        return tuple((clock, self._sums[clock][self.partition]) for clock in new if clock in self._sums)

    def take(self, clock: int, partition: int, sums: SquareSums) -> None:
        """Take the sums of another partition."""
        self._sums.setdefault(clock, {}).setdefault(partition, sums)

    def missing(self, clock: int) -> list[int]:
        """The partitions whose sums of a clock are needed and not known yet."""
        known = self._sums.get(clock, {})
        return [partition for partition in self._needed if partition not in known]

    def of(self, clock: int) -> list[SquareSums] | None:
        """The needed sums of a clock, by partition; None while some are missing."""
        if self.missing(clock):
            return None
        return [self._sums[clock][partition] for partition in self._needed]

    def forget(self, version: int) -> None:
        """Drop the sums that no partition waits for, now that this one is at `version`."""
        for clock in [clock for clock in self._sums if clock < version - self._behind]:
            del self._sums[clock]


def sums_of(job: Job, partition: int, copy: ShardCopy) -> dict[SumsOf, ClockSums]:
    """The sums that a shard of a job adds up and waits for; its own begin with those of a copy."""
    found: dict[SumsOf, ClockSums] = {}
    slack = job.consistency.slack or 0
    if job.square_tree is not None:
        everybody = range(job.layout.partitions)
        found[SumsOf.GRADIENT] = ClockSums(partition, everybody, slack, copy.squares)
    if job.layer_trees is not None:
        partners = job.layer_trees.partners[partition]
        found[SumsOf.DIRECTION] = ClockSums(partition, partners, slack, copy.directions)
    return found
