"""The traffic of a job's machines as lines of its bill, from its grants and ends alone. Pure.

At any instant each machine that is held sends and receives so many GB per hour, with all others in equal shares
(`billing.traffic`). So each pair of zones has carried so much by the job's end: one line for each route that costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

from bidbrain.accounts.ledger import ENDINGS, Carriage, Entry, EntryKind
from bidbrain.billing.traffic import Routes
from bidbrain.history.locations import Location
from bidbrain.money import HOUR_S, rounded_ratio

MB_PER_GB = 1000


def traffic_lines(
    entries: Sequence[Entry], types: Mapping[str, tuple[int, int]], carriage: Carriage, end_s: int
) -> list[Entry]:
    """A line for each route that costs, at the job's end. types: (on-demand price, vCPUs) by machine type.

    Raises UnknownRouteError, ValueError where a grant names no market or type.
    """
    return Carried(types, carriage).lines(entries, carriage.rates, end_s)


class Carried:
    """The same of a job that goes on: each entry of its account is read once, however often it is asked."""

    def __init__(self, types: Mapping[str, tuple[int, int]], carriage: Carriage) -> None:
        """types: see `traffic_lines`. Of the carriage what never changes: its prices and the home."""
        self._types, self._routes = types, Routes(carriage.home, carriage.prices)
        self._begin()

    def _begin(self) -> None:
        self._read = 0  # entries
        self._rates = 0  # that were known so far
        self._since_s: int | None = None  # of the stretch with the machines that are held now
        self._held: dict[Location, float] = defaultdict(float)
        self._of: dict[int | None, tuple[Location, float]] = {}
        self._megabytes: dict[tuple[Location, Location], float] = defaultdict(float)  # until `_since_s`

    def lines(self, entries: Sequence[Entry], rates: Sequence[tuple[int, float]], end_s: int) -> list[Entry]:
        """See `traffic_lines`. Entries and rates are those of the call before, and more behind them."""
        new = rates[self._rates :]
        if new and self._since_s is not None and new[0][0] < self._since_s:  # clocks differ by seconds
            self._begin()
        self._rates = len(rates)
        for entry in entries[self._read :]:
            self._take(entry, rates)
            self._read += 1
        megabytes = self._megabytes.copy()
        if self._since_s is not None:
            self._move(megabytes, rates, end_s)
        found = []
        for (one, other), moved in sorted(megabytes.items()):
            price, whole = self._routes.price(one, other), int(moved + 0.5)
            if amount := rounded_ratio(price * whole, MB_PER_GB):
                route = f"{one.zone}>{other.zone}"
                what = {"price": price, "micro_usd": amount, "route": route, "megabytes": whole}
                found.append(Entry(end_s, EntryKind.TRAFFIC, **what))
        return found

    def _take(self, entry: Entry, rates: Sequence[tuple[int, float]]) -> None:
        if self._since_s is None:
            self._since_s = entry.at_s
        is_grant = entry.kind is EntryKind.GRANT
        if not is_grant and entry.kind not in ENDINGS:
            return
        if entry.at_s > self._since_s:
            self._move(self._megabytes, rates, entry.at_s)
            self._since_s = entry.at_s
        if is_grant:
            if entry.market is None or entry.vcpus is None or entry.market.instance_type not in self._types:
                raise ValueError(f"the grant of allocation {entry.allocation} names no market, vCPUs or type")
            machines = entry.vcpus / self._types[entry.market.instance_type][1]
            place = self._routes.place(entry.market)
            self._of[entry.allocation] = place, machines
            self._held[place] += machines
        elif entry.allocation in self._of:
            place, machines = self._of.pop(entry.allocation)
            self._held[place] -= machines

    def _move(
        self,
        megabytes: dict[tuple[Location, Location], float],
        rates: Sequence[tuple[int, float]],
        until_s: int,
    ) -> None:
        """Add what the machines that are held now carry from `_since_s` to then."""
        assert self._since_s is not None
        held = self._held
        others = max(1.0, sum(held.values()) - 1.0)
        each = _moved_gb(rates, self._since_s, until_s) * MB_PER_GB / others
        for one, other in combinations(sorted(held), 2) if each else ():
            megabytes[one, other] += each * held[one] * held[other]


def _moved_gb(rates: Sequence[tuple[int, float]], begin_s: int, until_s: int) -> float:
    """The traffic of one machine within [begin_s, until_s), in GB."""
    starts = [max(begin_s, at_s) for at_s, _ in rates]
    ends = [*(min(until_s, at_s) for at_s, _ in rates[1:]), until_s]
    spans = zip(starts, ends, rates, strict=True)
    return sum(gb_per_h * max(0, end - start) for start, end, (_, gb_per_h) in spans) / HOUR_S
