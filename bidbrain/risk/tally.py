"""Observations of pools: node hours, losses, grants and refusals, per pool (type x zone) and hour. Pure.

Tallies only ever add up: those of several jobs are merged by adding, so writers never have to agree on anything.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from bidbrain.history.prices import Market
from bidbrain.money import HOUR_S

AGE_EDGES_H = (1.0, 4.0, 12.0)  # since launch: the first hour, up to 4 h, up to 12 h, older
AGES = len(AGE_EDGES_H) + 1
LAST_S = 253_402_300_799  # the end of the year 9999
SAME_EVENT_S = 120  # losses of one pool so close to each other are one event


def age_of(hours: float) -> int:
    """The index of an age since launch."""
    return sum(hours >= edge for edge in AGE_EDGES_H)


@dataclass
class Cell:
    """One pool in one hour. events: instants with losses; extra, beside: at them, the other losses, the other nodes.

    by_age: (node hours, losses) by age since launch, where it is known.
    """

    node_h: float = 0.0
    lost: float = 0.0
    events: float = 0.0
    extra: float = 0.0
    beside: float = 0.0
    granted: float = 0.0
    refused: float = 0.0
    by_age: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0] for _ in range(AGES)])

    def add(self, other: Cell, weight: float = 1.0) -> None:
        """Add what `other` saw, at a weight."""
        self.node_h += weight * other.node_h
        self.lost += weight * other.lost
        self.events += weight * other.events
        self.extra += weight * other.extra
        self.beside += weight * other.beside
        self.granted += weight * other.granted
        self.refused += weight * other.refused
        for own, theirs in zip(self.by_age, other.by_age, strict=True):
            own[0] += weight * theirs[0]
            own[1] += weight * theirs[1]


class TallyError(ValueError):
    """A text is no tally; the message is one sentence that names the line."""


@dataclass
class Tally:
    """Cells by (pool, start of an hour UTC)."""

    cells: dict[tuple[Market, int], Cell] = field(default_factory=dict)

    def at(self, market: Market, at_s: int) -> Cell:
        """The cell of an instant, made if there is none."""
        return self.cells.setdefault((market, at_s // HOUR_S * HOUR_S), Cell())

    def merge(self, other: Tally) -> None:
        """Add all that `other` saw."""
        for (market, hour_s), cell in other.cells.items():
            self.at(market, hour_s).add(cell)

    def lines(self) -> Iterator[str]:
        """One JSON line per cell, in order."""
        for (market, hour_s), cell in sorted(self.cells.items()):
            figures = [
                cell.node_h,
                cell.lost,
                cell.events,
                cell.extra,
                cell.beside,
                cell.granted,
                cell.refused,
            ]
            seen = [round(figure, 6) for figure in figures]
            ages = [[round(figure, 6) for figure in pair] for pair in cell.by_age]
            yield json.dumps({"pool": str(market), "hour_s": hour_s, "seen": seen, "by_age": ages})

    @staticmethod
    def parse(lines: Iterable[str], name: str) -> Tally:
        """The inverse of `lines`; raises TallyError."""
        tally = Tally()
        for number, text in enumerate(lines, 1):
            try:
                line = json.loads(text)
                seen = [float(figure) for figure in line["seen"]]
                ages = [[float(hours), float(lost)] for hours, lost in line["by_age"]]
                node_h, lost, events, extra, beside, granted, refused = seen
                if len(ages) != AGES or not all(0 <= each < math.inf for each in chain(seen, *ages)):
                    raise ValueError("figures that are too few, too many, below 0, or none")
                hour_s = line["hour_s"]
                if not isinstance(hour_s, int) or not 0 <= hour_s <= LAST_S:
                    raise ValueError(f"an hour of {hour_s}")
                cell = Cell(node_h, lost, events, extra, beside, granted, refused, ages)
                tally.at(Market.parse(line["pool"]), hour_s).add(cell)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise TallyError(f"{name} line {number}: not a line of a risk file ({error})") from None
        return tally


@dataclass
class _Held:
    market: Market
    machines: int
    granted_s: int
    counted_s: int


@dataclass
class Watch:
    """Tallies one job's machines from its events, in order of time. Instants in s, Unix time."""

    tally: Tally = field(default_factory=Tally)
    _held: dict[int, _Held] = field(default_factory=dict)
    _machines: Counter[Market] = field(default_factory=Counter)
    _event_s: dict[Market, int] = field(default_factory=dict)

    def machines(self, market: Market) -> int:
        """Machines that are held in a pool."""
        return self._machines[market]

    def market_of(self, number: int) -> Market | None:
        """The pool of an allocation that is held; None: it is not."""
        own = self._held.get(number)
        return None if own is None else own.market

    def granted(self, at_s: int, number: int, market: Market, machines: int) -> None:
        """Machines of one allocation were granted."""
        self.tally.at(market, at_s).granted += machines
        self._held[number] = _Held(market, machines, at_s, at_s)
        self._machines[market] += machines

    def refused(self, at_s: int, market: Market) -> None:
        """A pool had no room."""
        self.tally.at(market, at_s).refused += 1

    def hinted(self, at_s: int, market: Market) -> None:
        """The cloud said that a machine of the pool is at risk: nothing that is counted."""

    def ended(self, at_s: int, number: int, *, evicted: bool) -> bool:
        """An allocation ended; True: by an eviction that is an event of its own, not the rest of one just before.
        `number` may be one that it was never told of."""
        own = self._held.pop(number, None)
        if own is None:
            return False
        self._count(own, at_s)
        self._machines[own.market] -= own.machines
        beside = self._machines[own.market]
        if not evicted:
            return False
        cell = self.tally.at(own.market, at_s)
        cell.lost += own.machines
        cell.by_age[age_of((at_s - own.granted_s) / HOUR_S)][1] += own.machines
        last_s = self._event_s.get(own.market)
        is_new = last_s is None or at_s - last_s > SAME_EVENT_S
        if is_new:
            cell.events += 1
            cell.extra += own.machines - 1
            cell.beside += beside + own.machines - 1
            self._event_s[own.market] = at_s
        else:
            cell.extra += own.machines
        return is_new

    def copied(self) -> Watch:
        """A copy, which counts on by itself."""
        cells = {
            key: replace(cell, by_age=[list(pair) for pair in cell.by_age])
            for key, cell in self.tally.cells.items()
        }
        held = {number: replace(own) for number, own in self._held.items()}
        return Watch(Tally(cells), held, self._machines.copy(), dict(self._event_s))

    def count(self, now_s: int) -> None:
        """Count the hours of all held machines up to now."""
        for own in self._held.values():
            self._count(own, now_s)

    def _count(self, own: _Held, until_s: int) -> None:
        """Node hours, split where an hour of the day or an age ends."""
        edges = [own.granted_s + int(edge * HOUR_S) for edge in AGE_EDGES_H]
        while own.counted_s < until_s:
            at_s = own.counted_s
            ends = [(at_s // HOUR_S + 1) * HOUR_S, until_s, *(edge for edge in edges if edge > at_s)]
            hours = own.machines * (min(ends) - at_s) / HOUR_S
            cell = self.tally.at(own.market, at_s)
            cell.node_h += hours
            cell.by_age[age_of((at_s - own.granted_s) / HOUR_S)][0] += hours
            own.counted_s = min(ends)
