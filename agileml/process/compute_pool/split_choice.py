"""Chooses how to split a machine's cores between processes and threads, from the times of its first jobs.

Every split is tried for a few of the jobs that the machine has to do anyhow, from the fewest threads a process upwards,
until one is slower than the one before. Time is an argument; nothing here knows of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from agileml.config.hardware import Split

SETTLE = 2  # jobs that are not measured after each turn: items are loaded, threads begin
WINDOW = 4  # jobs that are measured
WORTH = 0.05  # of the units per second: less may be noise, and fewer threads a process is the simpler split


@dataclass(frozen=True)
class SplitFound:
    """The split that stays, with its reason."""

    split: Split
    reason: str


class SplitChoice:
    """Says which `split` to compute the next job with."""

    def __init__(self, splits: Sequence[Split]) -> None:
        """`splits`: at least two, each with more threads a process than the one before."""
        assert len(splits) > 1, splits
        self.split = splits[0]
        self._left = list(splits[1:])
        self._rates: dict[Split, float] = {}  # units per second
        self._skip = SETTLE
        self._jobs: list[float] = []

    def computed(self, units: int, seconds: float) -> SplitFound | None:
        """Learn from a job; returns the choice, once."""
        if self._skip:
            self._skip -= 1
            return None
        self._jobs.append(units / max(seconds, 1e-9))
        if len(self._jobs) < WINDOW:
            return None
        best = max(self._rates.values(), default=0.0)
        self._rates[self.split] = rate = median(self._jobs)
        if rate >= best and self._left:
            self.split, self._skip, self._jobs = self._left.pop(0), SETTLE, []
            return None
        return self._found()

    def _found(self) -> SplitFound:
        best = max(self._rates.values())
        self.split = next(split for split, rate in self._rates.items() if rate >= (1 - WORTH) * best)
        tried = ", ".join(f"{rate:.4g} units/s with {split}" for split, rate in self._rates.items())
        return SplitFound(self.split, tried)
