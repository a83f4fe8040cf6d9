"""The ledger: the events, charges and refunds of a job's machines, one JSON object per line.

From the price history alone `rebill` computes every amount again: a ledger carries no hidden state. The first line of a
job is its header (rules, types, reliable machines); the others are events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bidbrain.files.whole_file import whole_file
from bidbrain.history.prices import Market
from bidbrain.instants import parse_instant, show_instant


class EntryKind(StrEnum):
    """The kind of a line."""

    REQUEST = "request"
    REFUSED = "refused"
    GRANT = "grant"
    NOTICE = "notice"
    EVICTION = "eviction"
    TERMINATION = "termination"
    JOB_END = "job_end"  # an allocation that is open at the job's end
    CHARGE = "charge"
    REFUND = "refund"
    KEEP = "keep"
    LET_GO = "let_go"
    WORK = "work"
    TRAFFIC = "traffic"  # all that went between two zones, at the job's end


class EvictionCause(StrEnum):
    """Why markets evict: a price above the bid (2016), or a lack of capacity (today)."""

    PRICE = "price"
    CAPACITY = "capacity"


ENDINGS = (EntryKind.EVICTION, EntryKind.TERMINATION, EntryKind.JOB_END)
MONEY = (EntryKind.CHARGE, EntryKind.REFUND)


@dataclass(frozen=True)
class Entry:
    """One event. price and bid in micro-dollars per machine hour, amounts signed (a refund is negative).

    hour: number of the instance hour since the grant, from 0. done_vcpu_s: work so far (kind WORK). reason: of a
    request, and of a refusal that is not the market's. route, megabytes: two zones, and what went between them, at
    `price` per GB (kind TRAFFIC).
    """

    at_s: int
    kind: EntryKind
    allocation: int | None = None
    market: Market | None = None
    vcpus: int | None = None
    price: int | None = None
    bid: int | None = None
    hour: int | None = None
    micro_usd: int | None = None
    done_vcpu_s: int | None = None
    reason: str | None = None
    route: str | None = None
    megabytes: int | None = None


@dataclass(frozen=True)
class Carriage:
    """The traffic of a job. rates: (from when on, GB per hour of each machine), in order; home: zone of on-demand
    machines; prices: micro-dollars per GB by route (`billing.traffic`)."""

    rates: tuple[tuple[int, float], ...]
    home: str
    prices: Mapping[str, int]


@dataclass(frozen=True)
class Header:
    """The facts that a bill needs beside prices. types: (on-demand micro-dollars/h, vCPUs) by machine type.

    least_s: the least seconds that a machine which is bought on demand is billed.
    """

    job: str
    scheme: str
    start_s: int
    job_hours: float
    rules: str
    types: dict[str, tuple[int, int]]
    on_demand: dict[str, int]  # micro-dollars per machine hour of what is bought on demand
    cap_vcpus: int = 0
    evictions: EvictionCause = EvictionCause.PRICE
    traffic: Carriage | None = None  # None: it is not billed
    least_s: int = 0


@dataclass(frozen=True)
class Ledger:
    """One job's header and its events in order of time."""

    header: Header
    entries: tuple[Entry, ...]

    @property
    def given_back(self) -> int:
        """The refunds for unused parts of the hours that were open at the job's end (`hourly_2016`).

        The thesis' convention (section 4.5.2), which all ledgers keep; a real market keeps the money.
        """
        ended = {entry.allocation for entry in self.entries if entry.kind is EntryKind.JOB_END}
        refunds = [
            entry for entry in self.entries if entry.kind is EntryKind.REFUND and entry.allocation in ended
        ]
        return -sum(entry.micro_usd or 0 for entry in refunds)

    @property
    def micro_usd(self) -> int:
        """The bill: all charges and refunds, and traffic."""
        machines = sum(entry.micro_usd or 0 for entry in self.entries if entry.kind in MONEY)
        return machines + self.traffic_micro_usd

    @property
    def traffic_micro_usd(self) -> int:
        """The part of the bill that is traffic between zones and regions."""
        return sum(entry.micro_usd or 0 for entry in self.entries if entry.kind is EntryKind.TRAFFIC)


class LedgerError(ValueError):
    """A file is no ledger; the message is one sentence that names the line."""


def _header_line(header: Header) -> dict[str, Any]:
    line: dict[str, Any] = {
        "job": header.job,
        "kind": "job",
        "at": show_instant(header.start_s),
        "scheme": header.scheme,
        "job_hours": header.job_hours,
        "rules": header.rules,
        "types": {name: list(pair) for name, pair in sorted(header.types.items())},
        "on_demand": dict(sorted(header.on_demand.items())),
        "cap_vcpus": header.cap_vcpus,
        "evictions": header.evictions.value,
    }
    if header.least_s:
        line["on_demand_least_s"] = header.least_s
    if header.traffic is not None:
        rates = [[show_instant(at_s), gb_per_h] for at_s, gb_per_h in header.traffic.rates]
        line["traffic"] = asdict(header.traffic) | {"rates": rates}
    return line


def _entry_line(job: str, entry: Entry) -> dict[str, Any]:
    line: dict[str, Any] = {"job": job, "at": show_instant(entry.at_s), "kind": entry.kind.value}
    names = (
        "allocation",
        "vcpus",
        "price",
        "bid",
        "hour",
        "micro_usd",
        "done_vcpu_s",
        "reason",
        "route",
        "megabytes",
    )
    for name in names:
        if (value := getattr(entry, name)) is not None:
            line[name] = value
    if entry.market is not None:
        line["market"] = str(entry.market)
    return line


def lines_of(ledger: Ledger) -> Iterator[str]:
    """The ledger as JSON lines, without line ends."""
    yield json.dumps(_header_line(ledger.header))
    for entry in ledger.entries:
        yield json.dumps(_entry_line(ledger.header.job, entry))


def write_ledgers(path: Path, ledgers: Iterable[Ledger]) -> int:
    """Write jobs one after the other; the file appears only when it is whole. Returns how many jobs."""
    count = 0
    with whole_file(path) as partial, partial.open("w", encoding="utf-8") as out:
        for ledger in ledgers:
            count += 1
            out.writelines(line + "\n" for line in lines_of(ledger))
    return count


def read_ledgers(path: Path) -> Iterator[Ledger]:
    """The jobs of a file, one at a time; raises LedgerError naming the line."""
    header: Header | None = None
    entries: list[Entry] = []
    try:
        text = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from None
    with text:
        for number, raw in enumerate(text, 1):
            where = f"{path} line {number}"
            try:
                line = json.loads(raw)
                if line["kind"] == "job":
                    if header is not None:
                        yield Ledger(header, tuple(entries))
                    header, entries = _parse_header(line), []
                    continue
                entry = _parse_entry(line)
            except KeyError as error:
                raise LedgerError(
                    f"{where}: not a ledger line, {error} is missing; expected a file such as a run's ledger.jsonl"
                ) from None
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise LedgerError(f"{where}: not a ledger line ({type(error).__name__}: {error})") from None
            if header is None or line["job"] != header.job:
                raise LedgerError(f"{where}: an event of job {line['job']!r} without its header before it")
            entries.append(entry)
    if header is None:
        raise LedgerError(f"{path}: no jobs in this ledger")
    yield Ledger(header, tuple(entries))


def _parse_header(line: dict[str, Any]) -> Header:
    for name, pair in line["types"].items():
        if int(pair[1]) <= 0:
            raise ValueError(f"the type {name} has {pair[1]} vCPUs, expected more than 0")
    return Header(
        str(line["job"]),
        str(line["scheme"]),
        parse_instant(line["at"]),
        float(line["job_hours"]),
        str(line["rules"]),
        {str(name): (int(pair[0]), int(pair[1])) for name, pair in line["types"].items()},
        {str(name): int(price) for name, price in line["on_demand"].items()},
        int(line.get("cap_vcpus", 0)),
        EvictionCause(line.get("evictions", "price")),
        _parse_carriage(line["traffic"]) if "traffic" in line else None,
        int(line.get("on_demand_least_s", 0)),
    )


def _parse_carriage(found: dict[str, Any]) -> Carriage:
    prices = {str(route): int(price) for route, price in found["prices"].items()}
    rates = tuple((parse_instant(at), float(gb_per_h)) for at, gb_per_h in found["rates"])
    return Carriage(rates, str(found["home"]), prices)


def _parse_entry(line: dict[str, Any]) -> Entry:
    def whole(name: str) -> int | None:
        value = line.get(name)
        if value is not None and not isinstance(value, int):
            raise ValueError(f"{name} is {value!r}, expected a whole number")
        return value

    market = line.get("market")
    return Entry(
        parse_instant(line["at"]),
        EntryKind(line["kind"]),
        whole("allocation"),
        None if market is None else Market.parse(market),
        whole("vcpus"),
        whole("price"),
        whole("bid"),
        whole("hour"),
        whole("micro_usd"),
        whole("done_vcpu_s"),
        line.get("reason"),
        line.get("route"),
        whole("megabytes"),
    )
