"""Re-billing: the cost of a ledger's allocations computed from the price history alone, line by line.

The ledger gives only grants and ends (which instances were held, from when to when, and in which hour they ended), the
history gives the prices, and the rules give the amounts. The audit also reports where the history contradicts the
ledger: a grant above its bid, an eviction that no price explains, a missing eviction.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from bidbrain.accounts.carried import traffic_lines
from bidbrain.accounts.ledger import ENDINGS, MONEY, Entry, EntryKind, EvictionCause, Header, Ledger
from bidbrain.billing import RULES, Ending, Life, bill
from bidbrain.history.prices import NEVER_S, History
from bidbrain.instants import show_instant
from bidbrain.money import machine_seconds_micro_usd, show_usd
from bidbrain.setting import ON_DEMAND_ZONE

ENDING_OF = {
    EntryKind.EVICTION: Ending.EVICTED,
    EntryKind.TERMINATION: Ending.TERMINATED,
    EntryKind.JOB_END: Ending.JOB_END,
}
BillLine = tuple[int, int, int, int]  # at_s, allocation, hour, micro-dollars


@dataclass(frozen=True)
class Audit:
    """One job re-billed: both sums (micro-dollars), lines that were compared, and sentences where they differ."""

    job: str
    scheme: str
    ledger_micro_usd: int
    history_micro_usd: int
    lines: int
    differences: tuple[str, ...]


def rebill(ledger: Ledger, history: History) -> Audit:
    """Compare every charge and refund of a ledger with the one that the history and the rules give."""
    header = ledger.header
    differences: list[str] = []
    expected: Counter[BillLine] = Counter()
    if header.rules not in RULES:
        known = ", ".join(RULES)
        return Audit(
            header.job,
            header.scheme,
            ledger.micro_usd,
            0,
            0,
            (f"unknown rules {header.rules!r} (there are {known})",),
        )
    traffic = _traffic(ledger, differences)
    last_s = max((entry.at_s for entry in ledger.entries), default=header.start_s)
    for grant, end in _lives(ledger):
        try:
            expected.update(_allocation_lines(header, history, grant, end, last_s, differences))
        except ValueError as error:
            differences.append(f"allocation {grant.allocation}: {error}")
    booked: Counter[BillLine] = Counter(
        (entry.at_s, entry.allocation or 0, entry.hour or 0, entry.micro_usd or 0)
        for entry in ledger.entries
        if entry.kind in MONEY
    )
    for line, count in sorted((booked - expected).items()):
        differences += [f"the ledger has {_show(line)}, the history does not"] * count
    for line, count in sorted((expected - booked).items()):
        differences += [f"the history asks for {_show(line)}, the ledger does not have it"] * count
    total = sum(line[3] * count for line, count in expected.items()) + sum(traffic.values())
    lines = sum(expected.values()) + len(traffic)
    return Audit(header.job, header.scheme, ledger.micro_usd, total, lines, tuple(differences))


def _lives(ledger: Ledger) -> list[tuple[Entry, Entry | None]]:
    """Each grant with its end. Numbers of reliable machines come again: an end belongs to the last grant before it."""
    found: list[tuple[Entry, Entry | None]] = []
    granted: dict[int | None, int] = {}
    for entry in ledger.entries:
        if entry.kind is EntryKind.GRANT:
            granted[entry.allocation] = len(found)
            found.append((entry, None))
        elif entry.kind in ENDINGS and entry.allocation in granted:
            at = granted.pop(entry.allocation)
            found[at] = found[at][0], entry
    return found


def _traffic(ledger: Ledger, differences: list[str]) -> dict[str, int]:
    """Micro-dollars of traffic by route, from who was held where; where the ledger has others, a difference."""
    carriage = ledger.header.traffic
    booked = {e.route or "": e.micro_usd or 0 for e in ledger.entries if e.kind is EntryKind.TRAFFIC}
    last_s = max((entry.at_s for entry in ledger.entries), default=ledger.header.start_s)
    expected: dict[str, int] = {}
    if carriage is not None:
        try:
            lines = traffic_lines(ledger.entries, ledger.header.types, carriage, last_s)
        except ValueError as error:
            differences.append(f"traffic: {error}")
            return booked
        expected = {line.route or "": line.micro_usd or 0 for line in lines}
    for route in sorted(booked.keys() | expected.keys()):
        one, other = booked.get(route, 0), expected.get(route, 0)
        if one != other:
            differences.append(
                f"the ledger has {show_usd(one)} $ of traffic {route}, by its machines it is {show_usd(other)} $"
            )
    return expected


def _show(line: BillLine) -> str:
    at_s, allocation, hour, amount = line
    return f"{show_usd(amount)} $ at {show_instant(at_s)} (allocation {allocation}, hour {hour})"


def _allocation_lines(
    header: Header, history: History, grant: Entry, end: Entry | None, last_s: int, differences: list[str]
) -> list[BillLine]:
    """The bill of one allocation; contradictions with the history are added to `differences`."""
    if grant.market is None or grant.vcpus is None or grant.allocation is None:
        raise ValueError("the grant names no market, vCPUs or allocation")
    kind = grant.market.instance_type
    if kind not in header.types:
        raise ValueError(f"the type {kind} is not in the header")
    vcpus_per_machine = header.types[kind][1]
    end_s = last_s if end is None else end.at_s
    if end_s < grant.at_s:
        raise ValueError(f"it ends at {show_instant(end_s)}, before its grant")
    if grant.market.zone == ON_DEMAND_ZONE:
        if end is None:
            return []
        if (price := header.on_demand.get(kind)) is None:
            raise ValueError(f"the header has no on-demand price of {kind}")
        used_s = max(end_s - grant.at_s, header.least_s)
        amount = machine_seconds_micro_usd(price, grant.vcpus, vcpus_per_machine, used_s)
        return [(end_s, grant.allocation, 0, amount)] if amount else []
    if grant.market not in history.steps:
        raise ValueError(f"{grant.market} is not in the history")
    steps = history.steps[grant.market]

    def price_at(at_s: int) -> int:
        price = steps.price_at(at_s)
        if price is None:
            raise ValueError(f"{grant.market} has no price at {show_instant(at_s)}")
        return price

    if header.evictions is EvictionCause.PRICE:
        gone_s = steps.eviction_s(grant.at_s, grant.bid or 0)
        _check_market(grant, end, end_s, gone_s, price_at(grant.at_s), differences)
    ending = None if end is None else ENDING_OF[end.kind]
    hour = end.hour if end is not None and ending is Ending.TERMINATED else None
    life = Life(grant.at_s, grant.vcpus, vcpus_per_machine, None if end is None else end_s, ending, hour)
    return [
        (line.at_s, grant.allocation, line.hour, line.micro_usd)
        for line in bill(RULES[header.rules], life, price_at, last_s)
    ]


def _check_market(
    grant: Entry, end: Entry | None, end_s: int, gone_s: int, price: int, differences: list[str]
) -> None:
    """Add to `differences` where grant or end contradict the prices."""
    who = f"allocation {grant.allocation}"
    if grant.bid is None:
        return
    if price > grant.bid:
        differences.append(f"{who}: granted at {show_instant(grant.at_s)} above its bid")
    if end is not None and end.kind is EntryKind.EVICTION and gone_s != end_s:
        when = "never" if gone_s == NEVER_S else f"at {show_instant(gone_s)}"
        differences.append(
            f"{who}: evicted at {show_instant(end_s)}, but its bid is passed {when} in the history"
        )
    if gone_s < end_s:
        differences.append(
            f"{who}: held until {show_instant(end_s)}, but its bid is passed at {show_instant(gone_s)}"
        )
