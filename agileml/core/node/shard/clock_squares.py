"""The square sums of each clock's gradient at one shard: its own, and those of the other partitions."""

from __future__ import annotations

from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.gradient_norm import SquareSums, norm
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import SquaresOfClocks


class ClockSquares:
    """The sums of the clocks that some partition may not have applied yet."""

    def __init__(self, job: Job, partition: int, own: SquaresOfClocks = ()) -> None:
        assert job.square_tree is not None
        self._tree = job.square_tree
        self._partitions = job.layout.partitions
        # A worker that pushes clock t has read every partition at t - slack or later, so when this one has applied v
        # clocks, every other one has applied v - 1 - slack of them.
        self._behind = 1 + (job.consistency.slack or 0)
        self._partition = partition
        self._sums: dict[int, dict[int, SquareSums]] = {clock: {partition: sums} for clock, sums in own}
        self._new: list[int] = []  # clocks whose own sums were not sent yet

    @property
    def kept(self) -> SquaresOfClocks:
        """This partition's own sums."""
        return tuple(
            (clock, sums[self._partition])
            for clock, sums in sorted(self._sums.items())
            if self._partition in sums
        )

    def add_up(self, clock: int, total: Contribution) -> None:
        """Add up this partition's squares, unless that has been done."""
        sums = self._sums.setdefault(clock, {})
        if self._partition not in sums:
            sums[self._partition] = self._tree.sums(self._partition, total)
            self._new.append(clock)

    def take_new(self) -> SquaresOfClocks:
        """Return the own sums that were not sent yet, and count them as sent."""
        new, self._new = self._new, []
        return tuple((clock, self._sums[clock][self._partition]) for clock in new if clock in self._sums)

    def hear(self, clock: int, partition: int, sums: SquareSums) -> None:
        """Take the sums of another partition."""
        self._sums.setdefault(clock, {}).setdefault(partition, sums)

    def missing(self, clock: int) -> list[int]:
        """The partitions whose sums of a clock are not known yet."""
        known = self._sums.get(clock, {})
        return [partition for partition in range(self._partitions) if partition not in known]

    def norm(self, clock: int) -> float | None:
        """The norm of a clock's gradient; None while sums are missing."""
        if self.missing(clock):
            return None
        sums = self._sums[clock]
        return norm(sums[partition] for partition in range(self._partitions))

    def forget(self, version: int) -> None:
        """Drop the sums that no partition waits for, now that this one is at `version`."""
        for clock in [clock for clock in self._sums if clock < version - self._behind]:
            del self._sums[clock]
