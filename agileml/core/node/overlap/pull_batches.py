"""Pulls in batches, one after the other, as iBatch makes them (Wang, Pi, Zhou, AAAI 2019): `overlap: batches`.

Pulls begin when a clock is computed. The first batch of partitions is asked for at once, each further one when the one
before is here, so each pays the start-up of a pull once, and forward computes meanwhile with what is here. A machine
first measures its link and its forward with batches that grow, then takes those with which forward is over soonest
(`pipeline.ibatch.batches`). Nothing here knows of messages.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from agileml.core.node.overlap.choice import SETTLE, WINDOW, Chosen
from agileml.core.node.overlap.pull_times import PullTimes
from agileml.core.node.reading import Reading
from pipeline.ibatch.batches import batches, makespan_seconds


@dataclass(frozen=True)
class _Open:
    """A batch on its way: the partitions up to `stop` of a clock's parameters."""

    clock: int
    stop: int
    size_bytes: int
    since_s: float
    is_first: bool


def growing(partitions: int) -> tuple[int, ...]:
    """Where batches end that grow, so that pulls of several sizes are measured."""
    return tuple(sorted({-(-partitions // parts) for parts in (8, 4, 2, 1)}))


class PullBatches:
    """Chooses the partitions that are pulled next. The node sets the time, `now_s`."""

    def __init__(self, sizes_bytes: Sequence[int]) -> None:
        """sizes_bytes: of each partition's parameters."""
        self.now_s = 0.0
        self.ends = growing(len(sizes_bytes))
        self._sizes = sizes_bytes
        self._begin_view(())

    def begin_view(self, remote: Collection[int]) -> None:
        """Measure anew: other machines may serve now. remote: the partitions that others serve."""
        self.ends = growing(len(self._sizes))
        self._begin_view(remote)

    def _begin_view(self, remote: Collection[int]) -> None:
        self._remote = [size if p in remote else 0 for p, size in enumerate(self._sizes)]
        self._times = PullTimes()
        self._open: _Open | None = None
        self._reached = -1
        self._clocks = 0  # of this view
        self._is_chosen = False

    @property
    def _is_measuring(self) -> bool:
        return self._clocks > SETTLE and not self._is_chosen

    def due(self, reading: Reading, wanted: Sequence[int]) -> list[int]:
        """Return the wanted partitions of the first incomplete batch that were not requested yet."""
        self._note(reading)
        for start, stop in pairwise((0, *self.ends)):
            missing = [p for p in wanted if start <= p < stop and p not in reading.parts]
            if missing:
                due = [p for p in missing if p not in reading.asked]
                if due:
                    size = sum(self._remote[p] for p in due)
                    self._open = _Open(reading.clock, stop, size, self.now_s, is_first=start == 0)
                return due
        return []

    def _note(self, reading: Reading) -> None:
        """Measure the batch that was on its way, if it is here. The first of a clock also waited for other machines."""
        came = self._open
        if (
            came is None
            or came.clock != reading.clock
            or any(p not in reading.parts for p in range(came.stop))
        ):
            return
        self._open = None
        if self._is_measuring and not came.is_first:
            self._times.pulled(came.size_bytes, self.now_s - came.since_s)

    def computed(self, needed_s: tuple[float, ...]) -> None:
        """Record when the forward of a computed clock first needed each partition, in seconds of computing."""
        if self._is_measuring:
            self._times.computed(needed_s)

    def reached(self, clock: int) -> Chosen | None:
        """Take a clock that the worker has come to; return what it decided, if anything."""
        if clock == self._reached:
            return None
        self._reached = clock
        self._clocks += 1
        if self._is_chosen or self._clocks <= SETTLE + WINDOW:
            return None
        self._is_chosen = True
        return self._choose(clock)

    def _choose(self, clock: int) -> Chosen:
        """Cut the partitions into the batches with which forward is over soonest."""
        startup_s, byte_s = self._times.of_pulls()
        count = len(self._sizes)
        transfer_s = [size * byte_s for size in self._remote]
        forward_s = self._times.of_forward(count)
        best = batches(startup_s, transfer_s, forward_s)
        self.ends = best.ends
        streamed_s = startup_s + makespan_seconds(0.0, transfer_s, forward_s, range(1, count + 1))
        whole_s = makespan_seconds(startup_s, transfer_s, forward_s, [count])
        shown = ", ".join(f"{start}-{stop - 1}" for start, stop in pairwise((0, *best.ends)))
        return Chosen(
            clock,
            True,
            f"pulls in {len(best.ends)} batches (partitions {shown}): with {startup_s * 1e3:.3g} ms to start a pull "
            f"and {byte_s * 1e9:.3g} ms a MB, forward has its last parameters {best.makespan_s:.3g} s after the first "
            f"pull, with one pull of all after {whole_s:.3g} s, with an ordered stream (overlap: true) after "
            f"{streamed_s:.3g} s",
        )
