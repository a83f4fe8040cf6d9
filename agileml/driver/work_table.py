"""The work of all machines by window of clocks, from the rows that they report."""

from __future__ import annotations

from collections.abc import Iterable

from agileml.core.node.work_log import WorkRow
from agileml.events.run import Work, WorkDone


class WorkTable:
    """Collects rows until they are taken as events."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int, int], dict[str, Work]] = {}  # by epoch, first clock and length

    def add(self, machine: str, rows: Iterable[WorkRow]) -> None:
        """A machine reports rows."""
        for row in rows:
            window = self._rows.setdefault((row.epoch, row.first, row.clocks), {})
            window[machine] = plus(window.get(machine), Work(row.units, row.compute_s, row.wait_s))

    def take(self) -> list[WorkDone]:
        """The events of the rows since the last call, in the order of epochs and clocks."""
        taken, self._rows = self._rows, {}
        return [
            WorkDone(epoch, first + clocks, clocks, by_machine)
            for (epoch, first, clocks), by_machine in sorted(taken.items())
        ]


def plus(one: Work | None, other: Work) -> Work:
    """The sum of two records of one machine."""
    if one is None:
        return other
    return Work(one.units + other.units, one.compute_s + other.compute_s, one.wait_s + other.wait_s)
