"""Help between the machines of a run: which one helped which, and the seconds that it saved them."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass

from agileml.events.run import NO_WORK, HelpGiven, Work, WorkDone
from agileml.events.schema import Log, RunEvent


@dataclass(frozen=True)
class HelpRow:
    """`units` that `helper` computed for `helped`, a share of what that one would have had to compute.

    `spared_s`: the seconds that they would have taken there, at the speed that it had in the same run.
    """

    helper: str
    helped: str
    units: int
    share: float
    spared_s: float


class HelpSums:
    """Takes events of work and help; `rows` has one row for each pair, the most units first.

    Of more than `most` pairs those with the most units are kept, of more than `most` machines those that have worked
    last.
    """

    def __init__(self, most: int = 2000) -> None:
        self._most = most
        self._given: dict[tuple[str, str], int] = {}
        self._work: dict[str, Work] = {}

    def add(self, event: RunEvent) -> None:
        """Take the next event."""
        match event:
            case HelpGiven(units=units):
                for helper, by_helped in units.items():
                    for helped, count in by_helped.items():
                        self._given[helper, helped] = self._given.get((helper, helped), 0) + count
                if len(self._given) > 2 * self._most:
                    pairs = sorted(self._given, key=lambda pair: -self._given[pair])
                    self._given = {pair: self._given[pair] for pair in pairs[: self._most]}
            case WorkDone(by_machine=by_machine):
                for name, work in by_machine.items():
                    self._work[name] = self._work.pop(name, NO_WORK) + work
                if len(self._work) > 2 * self._most:
                    self._work = dict(list(self._work.items())[-self._most :])

    def rows(self) -> list[HelpRow]:
        """One row for each pair, the most units first."""
        dealt = Counter({name: work.units for name, work in self._work.items()})
        for (helper, helped), units in self._given.items():
            dealt[helped] += units
            dealt[helper] -= units  # what it computed for others was not its own to compute
        rows = []
        for (helper, helped), units in self._given.items():
            own = self._work.get(helped, NO_WORK)
            unit_s = own.compute_s / own.units if own.units else 0.0
            rows.append(HelpRow(helper, helped, units, units / max(units, dealt[helped]), units * unit_s))
        return sorted(rows, key=lambda row: (-row.units, row.helper, row.helped))


def help_rows(log: Log) -> list[HelpRow]:
    """The rows of a whole log."""
    sums = HelpSums(sys.maxsize)
    for each in log:
        sums.add(each.event)
    return sums.rows()
