"""Loss, speed and evaluations of a run over its clocks."""

from __future__ import annotations

from typing import Any

from agileml.events.observed import Evaluated
from agileml.events.run import ClockDone
from agileml.events.schema import RunEvent
from agileml.events.sums import ClocksDone, Standing
from agileml.runs.progress import Rate
from agileml.runs.report.series import Series, ValueSample
from agileml.runs.thinning import begun_s

MOST_METRICS = 8


class Curves:
    """Takes events; `as_json` has one series for each curve."""

    def __init__(self) -> None:
        self._loss, self._speed, self._items, self._took = Series(), Series(), Series(), Series()
        self._metrics: dict[str, Series] = {}
        self._rate, self._sample = Rate(), ValueSample()
        self._last: tuple[float, int] | None = None  # when which clock was complete
        self._told_speed: float | None = None

    def add(self, t_s: float, event: RunEvent) -> None:
        """Take the next event."""
        match event:
            case ClockDone() | ClocksDone():
                self._clock(t_s, event)
            case Evaluated(_, metrics):
                for name, value in metrics.items():
                    if name in self._metrics or len(self._metrics) < MOST_METRICS:
                        self._metrics.setdefault(name, Series()).add(t_s, value)

    def standing(self, t_s: float, event: Standing, clocks_per_s: float | None) -> None:
        """Take a line of progress, which is all that is known of a job of a cluster."""
        if event.loss is not None:
            self._loss.add(t_s, event.loss, event.clock)
        if clocks_per_s is not None:
            self._speed.add(t_s, clocks_per_s)
        self._told_speed = clocks_per_s

    def _clock(self, t_s: float, event: ClockDone | ClocksDone) -> None:
        self._rate.add(t_s, event.clock)
        self._loss.add(t_s, event.loss, event.clock)
        count = event.clock - event.first + 1 if isinstance(event, ClocksDone) else 1
        if (speed := self._rate.clocks_per_s) is not None:
            self._speed.add(t_s, speed)
            self._items.add(t_s, speed * event.examples / count)
        if self._last is not None:
            last_s, last = self._last
            # After a rollback the clock is a lower one.
            took_s = (t_s - last_s) / max(count, event.clock - last)
            self._sample.add(took_s)
            if isinstance(event, ClocksDone):
                before_s = (begun_s(t_s, event) - last_s) / max(1, event.first - last)
                took_s = max(took_s, event.longest_s, before_s)
            self._took.add(t_s, max(took_s, 1e-6), event.clock)  # clocks of one report have one time
        self._last = t_s, event.clock

    def as_json(self) -> dict[str, Any]:
        """The curves; those over clocks have the clock as third number of a point."""
        return {
            "clocks_per_s": self._rate.clocks_per_s or self._told_speed,
            "loss": self._loss.points(),
            "speed": self._speed.points(),
            "items": self._items.points(),
            "took": self._took.points(),
            "median_s": self._sample.median,
            "metrics": {name: series.points() for name, series in self._metrics.items()},
        }
