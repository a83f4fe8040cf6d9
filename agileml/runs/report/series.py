"""Series of points whose size does not grow with a run's length."""

from __future__ import annotations

import math
from statistics import median

MOST_POINTS = 300
Point = tuple[float, ...]


class Series:
    """Points (t_s, value, ...) in the order of time.

    A long series keeps of each bucket of points the one with the lowest value and the one with the highest, and of all
    points the first and the newest: at most `2 * most + 4`.
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most, self._size, self._count = most, 2, 0
        self._kept: list[Point] = []  # two of each full bucket
        self._first: Point | None = None
        self._low = self._high = self._newest = ()  # type: Point

    def add(self, *point: float) -> None:
        """Add (t_s, value, ...); points that are not finite are left out."""
        if not all(map(math.isfinite, point)):
            return
        if self._first is None:
            self._first = point
        if not self._count:
            self._low = self._high = point
        elif point[1] < self._low[1]:
            self._low = point
        elif point[1] >= self._high[1]:
            self._high = point
        self._newest = point
        self._count += 1
        if self._count == self._size:
            self._kept += sorted((self._low, self._high))
            self._count = 0
            if len(self._kept) >= 2 * self._most:
                self._halve()

    def _halve(self) -> None:
        """Every two buckets become one."""
        merged: list[Point] = []
        for at in range(0, len(self._kept), 4):
            four = self._kept[at : at + 4]
            low = min(four, key=lambda point: point[1])
            high = max(reversed(four), key=lambda point: point[1])
            merged += sorted((low, high))
        self._kept = merged
        self._size *= 2

    def points(self) -> list[Point]:
        """The points that are kept."""
        if self._first is None:
            return []
        found = list(self._kept) if self._kept[:1] == [self._first] else [self._first, *self._kept]
        under_way = sorted((self._low, self._high)) if self._count else []
        for point in (*under_way, self._newest):
            if point > found[-1]:
                found.append(point)
        return found


class ValueSample:
    """Every value of a short series, every second, fourth ... one of a long series: enough for its median."""

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most, self._every, self._count = most, 1, 0
        self._values: list[float] = []

    def add(self, value: float) -> None:
        """Add a value."""
        if self._count % self._every == 0:
            self._values.append(value)
            if len(self._values) > 2 * self._most:
                self._values = self._values[::2]
                self._every *= 2
        self._count += 1

    @property
    def median(self) -> float | None:
        """The median; None without values."""
        return median(self._values) if self._values else None
