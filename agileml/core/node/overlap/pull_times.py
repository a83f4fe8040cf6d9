"""A machine's measurements of its pulls and its forward, for iBatch's planner (equations 1 to 3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median


def fitted(seconds: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """The start-up of a pull in seconds, and its seconds a byte (T_s, T_t); (0, 0) without pulls.

    seconds: by bytes, the seconds of the pulls of that size. A least-squares fit to the median of each size; neither
    result is below 0.
    """
    points = [(size, median(each)) for size, each in seconds.items() if each]
    if not points:
        return 0.0, 0.0
    mean_bytes, mean_s = fmean(size for size, _ in points), fmean(took_s for _, took_s in points)
    spread = sum((size - mean_bytes) ** 2 for size, _ in points)
    if not spread:  # pulls of one size cannot separate start-up from rate
        return (0.0, mean_s / mean_bytes) if mean_bytes else (mean_s, 0.0)
    rate = sum((size - mean_bytes) * (took_s - mean_s) for size, took_s in points) / spread
    startup_s = mean_s - rate * mean_bytes
    if rate < 0:
        return mean_s, 0.0
    if startup_s < 0:
        return 0.0, sum(size * took_s for size, took_s in points) / sum(size**2 for size, _ in points)
    return startup_s, rate


def forward_seconds(needed_s: Sequence[Sequence[float]]) -> list[float]:
    """The seconds that forward computes with each partition before it needs a later one (C); 0 for the last.

    needed_s: for each clock, the seconds that forward had computed when it first needed each partition. Pulls come in
    the order of partitions, so a partition that forward needs early also makes it wait for all before it. The time with
    the last partition is not measured: it is the same for all batches.
    """
    typical = [median(each) for each in zip(*needed_s, strict=True)]
    for partition in reversed(range(len(typical) - 1)):
        typical[partition] = min(typical[partition : partition + 2])
    return [later - sooner for sooner, later in pairwise(typical)] + [0.0]


class PullTimes:
    """Pulls and forwards of some clocks of one view."""

    def __init__(self) -> None:
        self._pulls: dict[int, list[float]] = defaultdict(list)  # seconds, by bytes
        self._needed_s: list[tuple[float, ...]] = []

    def pulled(self, size_bytes: int, seconds: float) -> None:
        """Record a pull of `size_bytes` from other machines that took `seconds`."""
        if size_bytes:
            self._pulls[size_bytes].append(seconds)

    def computed(self, needed_s: tuple[float, ...]) -> None:
        """Record a forward that first needed each partition after these seconds of computing."""
        self._needed_s.append(needed_s)

    def of_pulls(self) -> tuple[float, float]:
        """The start-up of a pull, and its seconds a byte."""
        return fitted(self._pulls)

    def of_forward(self, partitions: int) -> list[float]:
        """Seconds of forward with each partition; 0 before the first measurement."""
        return forward_seconds(self._needed_s) if self._needed_s else [0.0] * partitions
