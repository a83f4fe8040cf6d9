"""Help between the machines of a run: which one helped which, and the seconds that it saved them."""

from __future__ import annotations

from dataclasses import dataclass

from agileml.events.run import HelpGiven, WorkDone
from agileml.events.schema import Log, events_of


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


def help_rows(log: Log) -> list[HelpRow]:
    """One row for each pair, the most units first."""
    given: dict[tuple[str, str], int] = {}
    received: dict[str, int] = {}
    for event in events_of(log, HelpGiven):
        for helper, by_helped in event.units.items():
            for helped, units in by_helped.items():
                given[helper, helped] = given.get((helper, helped), 0) + units
                received[helped] = received.get(helped, 0) + units
    computed: dict[str, int] = {}
    spent_s: dict[str, float] = {}
    for done in events_of(log, WorkDone):
        for name, work in done.by_machine.items():
            computed[name] = computed.get(name, 0) + work.units
            spent_s[name] = spent_s.get(name, 0.0) + work.compute_s
    rows = []
    for (helper, helped), units in given.items():
        own = computed.get(helped, 0)
        unit_s = spent_s.get(helped, 0.0) / own if own else 0.0
        rows.append(HelpRow(helper, helped, units, units / (own + received[helped]), units * unit_s))
    return sorted(rows, key=lambda row: (-row.units, row.helper, row.helped))
