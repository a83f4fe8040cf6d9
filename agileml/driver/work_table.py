"""The work of all machines by window of clocks, from the rows that they report."""

from __future__ import annotations

from collections.abc import Iterable

from agileml.core.node.work_log import WorkRow
from agileml.events.run import NO_WORK, HelpGiven, Work, WorkDone


class WorkTable:
    """Collects rows until they are taken as events."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int, int], dict[str, Work]] = {}  # by epoch, first clock and length
        self._help: dict[tuple[int, int, int], dict[str, dict[str, int]]] = {}

    def add(self, machine: str, rows: Iterable[WorkRow]) -> None:
        """Add the rows that a machine reports."""
        for row in rows:
            window = self._rows.setdefault((row.epoch, row.first, row.clocks), {})
            work = Work(row.units, row.compute_s, row.wait_s)
            window[machine] = window.get(machine, NO_WORK) + work
            if row.helped:
                given = self._help.setdefault((row.epoch, row.first, row.clocks), {}).setdefault(machine, {})
                for helped, units in row.helped:
                    given[helped] = given.get(helped, 0) + units

    def take(self) -> list[WorkDone | HelpGiven]:
        """The events of the rows since the last call: those of work, then those of help, each in the order of epochs
        and clocks."""
        taken, self._rows = self._rows, {}
        given, self._help = self._help, {}
        work = [
            WorkDone(epoch, first + clocks, clocks, by_machine)
            for (epoch, first, clocks), by_machine in sorted(taken.items())
        ]
        help_ = [
            HelpGiven(epoch, first + clocks, clocks, units)
            for (epoch, first, clocks), units in sorted(given.items())
        ]
        return [*work, *help_]
