"""The series of a run: for each clock its loss, learning rate, speed and machines, and its evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from agileml.events.observed import Evaluated
from agileml.events.run import ClockDone, MembershipChanged
from agileml.events.schema import Log, RunEvent
from agileml.events.sums import ClocksDone
from agileml.runs.summary import stopped_in
from agileml.runs.thinning import clocks_of


@dataclass(frozen=True)
class ClockRow:
    """`clock` clocks are complete. `loss`: the mean over the last one's `examples`; `seconds`: that it took, None where
    it is not known; `learning_rate`: of its step."""

    clock: int
    loss: float
    examples: int
    seconds: float | None
    items_per_s: float | None
    learning_rate: float
    machines: int


_OWN = frozenset(field.name for field in fields(ClockRow))


def beside_row(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of an evaluation as they stand beside the fields of a row: one of a field's name becomes
    `evaluation/loss`."""
    return {f"evaluation/{name}" if name in _OWN else name: value for name, value in metrics.items()}


def series(row: ClockRow) -> dict[str, float]:
    """The numbers of a clock by the names under which trackers show them."""
    return {
        f"training/{name}": value
        for name, value in asdict(row).items()
        if name != "clock" and value is not None
    }


def evaluated(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of an evaluation by the names under which trackers show them."""
    return {f"evaluation/{name}": value for name, value in metrics.items()}


class RowMaker:
    """Makes the row of each clock from the events of a run, in their order."""

    def __init__(self, learning_rate: Callable[[int], float]) -> None:
        """learning_rate: by clock, 0-based."""
        self._learning_rate = learning_rate
        self._machines = 1

    def of(self, event: RunEvent) -> ClockRow | None:
        """The row of a clock that is done; None for other events."""
        if isinstance(event, MembershipChanged):
            self._machines = event.reliable + event.transient
        if not isinstance(event, ClockDone):
            return None
        speed = event.examples / event.seconds if event.seconds else None
        return ClockRow(
            event.clock,
            event.loss,
            event.examples,
            event.seconds,
            speed,
            self._learning_rate(event.clock - 1),
            self._machines,
        )


def history(log: Log, learning_rate: Callable[[int], float]) -> list[dict[str, Any]]:
    """A dict for each clock, ascending: the fields of ClockRow and the metrics that were evaluated at it.

    Of a clock that was done again after a rollback, the last time counts. Those after the cut that a stopped run ended
    with are not in its result, and are left out. A log keeps only the mean over several clocks
    when a run is old: then a dict stands for the clocks since the one before it.
    """
    rows = RowMaker(learning_rate)
    by_clock: dict[int, dict[str, Any]] = {}
    newest = 0
    for logged in log:
        for event in clocks_of([logged]):
            row = rows.of(event.event)
            assert row is not None
            if isinstance(logged.event, ClocksDone):  # those before a rollback ended at other clocks
                for clock in range(logged.event.first, min(row.clock, newest + 1)):
                    by_clock.pop(clock, None)
            newest = max(newest, row.clock)
            by_clock[row.clock] = asdict(row)
        rows.of(logged.event)
    for logged in log:
        if isinstance(logged.event, Evaluated):
            clock = logged.event.clock
            by_clock.setdefault(clock, {"clock": clock}).update(beside_row(logged.event.metrics))
    stopped = stopped_in(log)
    return [by_clock[clock] for clock in sorted(by_clock) if stopped is None or clock <= stopped.clock]
