"""The traffic of a job's machines as lines of its bill, from its grants and ends alone. Pure.

At any instant each machine that is held sends and receives so many GB per hour, with all others in equal shares
(`billing.traffic`). So each pair of zones has carried so much by the job's end: one line for each route that costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
    routes = Routes(carriage.home, carriage.prices)
    megabytes: dict[tuple[Location, Location], float] = defaultdict(float)
    for begin_s, until_s, held in _stretches(entries, types, routes, end_s):
        others = max(1.0, sum(held.values()) - 1.0)
        each = _moved_gb(carriage, begin_s, until_s) * MB_PER_GB / others
        for one, other in combinations(sorted(held), 2) if each else ():
            megabytes[one, other] += each * held[one] * held[other]
    lines = []
    for (one, other), moved in sorted(megabytes.items()):
        price, whole = routes.price(one, other), int(moved + 0.5)
        if amount := rounded_ratio(price * whole, MB_PER_GB):
            route = f"{one.zone}>{other.zone}"
            what = {"price": price, "micro_usd": amount, "route": route, "megabytes": whole}
            lines.append(Entry(end_s, EntryKind.TRAFFIC, **what))
    return lines


def _moved_gb(carriage: Carriage, begin_s: int, until_s: int) -> float:
    """What one machine moves within [begin_s, until_s)."""
    starts = [max(begin_s, at_s) for at_s, _ in carriage.rates]
    ends = [*(min(until_s, at_s) for at_s, _ in carriage.rates[1:]), until_s]
    spans = zip(starts, ends, carriage.rates, strict=True)
    return sum(gb_per_h * max(0, end - start) for start, end, (_, gb_per_h) in spans) / HOUR_S


def _stretches(
    entries: Sequence[Entry], types: Mapping[str, tuple[int, int]], routes: Routes, end_s: int
) -> Iterator[tuple[int, int, dict[Location, float]]]:
    """(from, to, machines by place) between each two changes of what is held."""
    held: dict[Location, float] = defaultdict(float)
    of: dict[int | None, tuple[Location, float]] = {}
    since_s = entries[0].at_s if entries else end_s
    for entry in entries:
        is_grant = entry.kind is EntryKind.GRANT
        if not is_grant and entry.kind not in ENDINGS:
            continue
        if entry.at_s > since_s:
            yield since_s, entry.at_s, dict(held)
            since_s = entry.at_s
        if is_grant:
            if entry.market is None or entry.vcpus is None or entry.market.instance_type not in types:
                raise ValueError(f"the grant of allocation {entry.allocation} names no market, vCPUs or type")
            machines = entry.vcpus / types[entry.market.instance_type][1]
            of[entry.allocation] = routes.place(entry.market), machines
            held[routes.place(entry.market)] += machines
        elif entry.allocation in of:
            place, machines = of.pop(entry.allocation)
            held[place] -= machines
    if end_s > since_s:
        yield since_s, end_s, dict(held)
