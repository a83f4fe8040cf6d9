"""A worker's speed over time, independent of its work: piecewise constant, drawn piece by piece."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from straggler.speed.predictors import FREE, Resources


@dataclass(frozen=True, slots=True)
class Piece:
    """`duration_s` seconds at `speed` (1: undisturbed), and the resources that a look at the machine would show."""

    duration_s: float
    speed: float
    resources: Resources = FREE


class SpeedProfile:
    """Work done by a time and the time of a work, in seconds of an undisturbed worker; O(log pieces) each.

    `pieces` are taken as they are needed, and may be endless; the last one lasts for ever where they are not.
    """

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._rest = pieces
        self._starts_s: list[float] = []
        self._works: list[float] = []
        self._pieces: list[Piece] = []
        self._end_s = 0.0
        self._end_work = 0.0
        self._last = False
        self._more()

    def _more(self) -> None:
        piece = next(self._rest, None)
        if piece is None:
            self._last = True
            self._end_s = self._end_work = float("inf")
            if not self._pieces or self._pieces[-1].speed <= 0:
                raise ValueError("a speed profile is empty or ends standing still; expected a positive speed")
            return
        self._starts_s.append(self._end_s)
        self._works.append(self._end_work)
        self._pieces.append(piece)
        self._end_s += piece.duration_s
        self._end_work += piece.duration_s * piece.speed

    def work_by(self, time_s: float) -> float:
        """Work done in [0, time_s] by a worker that never rests."""
        while time_s >= self._end_s:
            self._more()
        at = bisect_right(self._starts_s, time_s) - 1
        return self._works[at] + (time_s - self._starts_s[at]) * self._pieces[at].speed

    def time_of(self, work: float) -> float:
        """The time by which `work` is done by a worker that never rests."""
        while work >= self._end_work:
            self._more()
        at = bisect_right(self._works, work) - 1
        speed = self._pieces[at].speed
        return self._starts_s[at] + ((work - self._works[at]) / speed if speed > 0 else 0.0)

    def resources_at(self, time_s: float) -> Resources:
        """CPU and memory as seen at a time."""
        while time_s >= self._end_s:
            self._more()
        return self._pieces[bisect_right(self._starts_s, time_s) - 1].resources

    def speed_at(self, time_s: float) -> float:
        """The speed at a time."""
        while time_s >= self._end_s:
            self._more()
        return self._pieces[bisect_right(self._starts_s, time_s) - 1].speed


def ideal_time_s(profiles: list[SpeedProfile], work: float, until_s: dict[int, float] | None = None) -> float:
    """The time to do all work if it is perfectly divided at all times, at no cost: a bound for every scheme.

    `until_s`: workers that stop at a time. Raises ValueError when they all do and work remains.
    """
    ends = until_s or {}

    def done(time_s: float) -> float:
        return sum(
            profile.work_by(min(time_s, ends.get(worker, time_s))) for worker, profile in enumerate(profiles)
        )

    late = work / len(profiles)
    for _ in range(60):
        if done(late) >= work:
            break
        late *= 2
    else:
        raise ValueError(f"{work} of work is never done: every worker has left")
    early = 0.0
    for _ in range(60):
        middle = 0.5 * (early + late)
        if done(middle) < work:
            early = middle
        else:
            late = middle
    return late
