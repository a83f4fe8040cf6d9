"""A worker's forecast of its own speed, from how fast it was and from the CPU and memory that it had (LB-BSP's NARX).

The worker's pushes carry the forecast to the planner of the clocks. So a net stays with its worker through every
change of members, machines train their nets beside each other, and all machines of an all-reduce hear the same number.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from straggler.speed.predictors import Resources, SpeedPredictor

RECENT_S = 0.1  # what a worker has now is what it had in the last stretch of this length, or a little more
LEAST_S = 0.002  # of wanting a core, to say which share of it was had


@dataclass(frozen=True)
class CoreReading:
    """Sums over the threads that compute, since they began: `run_s` on a core, `wait_s` runnable without one.

    `memory`: the share of the computer's memory that is available.
    """

    at_s: float
    run_s: float
    wait_s: float
    memory: float


class SpeedForecast:
    """Tells a predictor of each clock, and what it `expected`: units per second in the next clock; 0: not known."""

    def __init__(self, predictor: SpeedPredictor) -> None:
        self.expected = 0.0
        self._predictor = predictor
        self._readings: deque[CoreReading] = deque()  # the newest, back to the first that is RECENT_S older
        self._began: CoreReading | None = None  # when the last clock was computed
        self._cpu = 1.0  # the last share that is known
        self._clock = -1
        self._units = 0
        self._seconds = 0.0

    def measured(self, reading: CoreReading) -> None:
        """Take a reading of now."""
        self._readings.append(reading)
        while len(self._readings) > 2 and reading.at_s - self._readings[1].at_s >= RECENT_S:
            self._readings.popleft()
        self._began = self._began or reading

    def computed(self, clock: int, units: int, seconds: float, dealt: int) -> None:
        """Record a bundle of `units` units. The last of the `dealt` units of a clock gives a new forecast.

        Work that is repeated after a change of members adds units as well as seconds, so the rate stays right.
        """
        if clock != self._clock:
            self._clock, self._units, self._seconds = clock, 0, 0.0
        self._units += units
        self._seconds += seconds
        if self._units < dealt or self._seconds <= 0:
            return
        had, has = self._resources()
        self._predictor.observe(self._units / self._seconds, had)
        self.expected = self._predictor.predict(has)
        self._clock = -1

    def _resources(self) -> tuple[Resources, Resources]:
        """The worker's resources since the clock before, and its latest ones."""
        if not self._readings:
            return Resources(1.0, 1.0), Resources(1.0, 1.0)
        assert self._began is not None
        first, now = self._readings[0], self._readings[-1]
        had = self._share(self._began, now)
        self._cpu = has = self._share(first, now)
        before, self._began = self._began.memory, now
        return Resources(had, before), Resources(has, now.memory)

    def _share(self, start: CoreReading, end: CoreReading) -> float:
        """The share of its time on a core of the time in which it wanted one."""
        ran_s, waited_s = end.run_s - start.run_s, end.wait_s - start.wait_s
        return ran_s / (ran_s + waited_s) if ran_s + waited_s >= LEAST_S else self._cpu
