"""The completed clocks, in order, and the average duration of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from agileml.core.parameters.loss_scale import ScaleChange, reason
from agileml.core.protocol.messages import ClockReport
from agileml.events.observed import Evaluated, LossScaleChanged
from agileml.events.run import ClockDone


class ProgressLog:
    """`completed` counts the completed clocks; None after a restart of the controller, until the first report.
    `reported`: this controller or an earlier one has the reports of all clocks before it."""

    def __init__(self, completed: int | None, metrics: Sequence[str] = ()) -> None:
        """metrics: the names of what units measure, in the order of the reports."""
        self.completed = completed
        self.reported = completed or 0
        self._metrics = metrics
        self._noted: list[tuple[Evaluated | LossScaleChanged, float]] = []
        self.clock_s: float | None = None  # a clock's usual duration: exponential average
        self._last_s: float | None = None

    def add(self, entries: Iterable[ClockReport]) -> Iterator[tuple[ClockDone, float]]:
        """Add reports from partition 0's owner; yield each newly completed clock and its time.

        The owner repeats each entry until a controller has it. Entries missing before the first went to an earlier
        controller, so this one does not wait for them.
        """
        for entry in entries:
            if self.completed is not None and entry.clock < self.completed:
                continue
            seconds = None
            if entry.clock == self.completed and self._last_s is not None:
                seconds = max(0.0, entry.at_s - self._last_s)
                self.clock_s = seconds if self.clock_s is None else 0.8 * self.clock_s + 0.2 * seconds
            self._last_s = entry.at_s
            self.completed = self.reported = entry.clock + 1
            if found := means(self._metrics, entry.metrics):
                self._noted.append((Evaluated(entry.clock, found), entry.at_s))
            if (scale := entry.loss_scale) is not None and scale.change is not ScaleChange.NONE:
                changed = LossScaleChanged(self.completed, scale.scale, scale.skipped, reason(scale))
                self._noted.append((changed, entry.at_s))
            mean = entry.loss / max(1, entry.examples)
            yield ClockDone(self.completed, mean, entry.examples, seconds), entry.at_s

    def take_noted(self) -> list[tuple[Evaluated | LossScaleChanged, float]]:
        """The metrics and the new loss scales of the clocks added since the last call, each with its time."""
        found, self._noted = self._noted, []
        return found

    def none_left(self, version: int) -> None:
        """The owner, at `version`, has nothing to report: an earlier controller has all its entries."""
        self.reported = max(self.reported, version)
        if self.completed is not None:
            self.completed = max(self.completed, version)

    def roll_back(self, known: int, base: int) -> int:
        """Training resumes at `base` although clocks < `known` were done; return how many are computed again."""
        reached = max(known, self.completed or 0)
        self.reported = min(self.reported, base)
        if self.completed is not None:
            self.completed = min(self.completed, base)
        return max(0, reached - base)


def means(names: Sequence[str], sums: Sequence[float]) -> Mapping[str, float]:
    """Each metric's mean from its sum and its weight, where something was measured."""
    pairs = zip(names, sums[::2], sums[1::2], strict=False)
    return {name: total / weight for name, total, weight in pairs if weight}
