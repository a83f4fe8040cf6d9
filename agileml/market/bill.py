"""The bill of a job on a market, beside the cost of the same job on demand and with the standard bid.

All three follow the market's rules: under `hourly_2016` an hour that was begun is paid when its user ends it. The
thesis does not charge the unused part of the hours that are open at the job's end (section 4.5.2); ledgers and
simulations keep that convention, and the bill names it beside its own figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agileml.market.setup import MarketSetup
from bidbrain.accounts.ledger import EntryKind, Ledger, write_ledgers
from bidbrain.accounts.rebill import rebill
from bidbrain.billing import Hourly2016
from bidbrain.history.archive import rows_of, write_rows
from bidbrain.history.prices import History, Steps
from bidbrain.money import HOUR_S, usd
from bidbrain.policy.registry import find_scheme
from bidbrain.simulate.simulator import Outcome, simulate

LEDGER, PRICES = "ledger.jsonl", "prices.csv.gz"
STANDARD, STATIC = "standard_checkpoint", "static_checkpoint"


@dataclass(frozen=True)
class Bill:
    """Money in micro-dollars.

    given_back: what the thesis' convention does not charge of the hours that were open at the job's end. on_demand: the
    job's vCPUs for its hours at the on-demand price, and on_demand_paid the same in whole hours where hours are billed.
    standard: the same job with the standard bid and
    checkpoints, simulated on the same prices (None without recorded prices). traffic: the part of micro_usd that went
    between zones. differences: contradictions between the
    ledger and the bill computed from the prices.
    """

    micro_usd: int
    given_back: int
    hours: float
    on_demand: int
    on_demand_paid: int
    standard: Outcome | None
    standard_given_back: int
    standard_scheme: str
    grants: int
    evictions: int
    spot_machine_hours: float
    differences: tuple[str, ...]
    traffic: int = 0

    def summary(self) -> dict[str, Any]:
        """For summary.json, in dollars."""
        standard = self.standard
        return {
            "usd": usd(self.micro_usd),
            "traffic_usd": usd(self.traffic),
            "market_hours": round(self.hours, 4),
            "on_demand_usd": usd(self.on_demand_paid),
            "standard": self.standard_scheme,
            "standard_checkpoint_usd": None
            if standard is None
            else usd(standard.micro_usd + self.standard_given_back),
            "thesis": {
                "usd": usd(self.micro_usd - self.given_back),
                "on_demand_usd": usd(self.on_demand),
                "standard_checkpoint_usd": None if standard is None else usd(standard.micro_usd),
            },
            "standard_checkpoint_hours": None
            if standard is None
            else round((standard.end_s - standard.start_s) / HOUR_S, 4),
            "standard_checkpoint_finished": None if standard is None else standard.finished,
            "grants": self.grants,
            "evictions": self.evictions,
            "spot_machine_hours": round(self.spot_machine_hours, 3),
            "rebilled_differences": list(self.differences),
        }


def bill_of(setup: MarketSetup, ledger: Ledger, folder: Path) -> Bill:
    """Add a job up, and write its ledger and the prices that it was billed with to `folder`, for an audit."""
    setting = setup.setting
    history = setting.history
    write_ledgers(folder / LEDGER, [ledger])
    differences: tuple[str, ...] = ()
    standard, standard_given_back = None, 0
    if setup.is_played:
        write_rows(folder / PRICES, rows_of(_since(history, setup.start_s)))
        differences = rebill(ledger, history).differences
        scheme = find_scheme(STATIC if setting.pools else STANDARD)
        own = scheme.setting(setting)
        standard, other = simulate(
            own, scheme.name, scheme.make(own, setup.start_s), setup.start_s, scheme.reliable
        )
        standard_given_back = other.given_back
    spot = [entry for entry in ledger.entries if entry.market in setting.by_market]
    per_machine = {listing.market: listing.vcpus for listing in setting.listings}
    began = {e.allocation: e for e in spot if e.kind is EntryKind.GRANT}
    ended = {
        e.allocation: e
        for e in spot
        if e.kind in (EntryKind.EVICTION, EntryKind.TERMINATION, EntryKind.JOB_END)
    }
    machine_s = sum(
        (ended[number].at_s - grant.at_s) * (grant.vcpus or 0) / per_machine[grant.market]
        for number, grant in began.items()
        if number in ended and grant.market is not None
    )
    end_s = ledger.entries[-1].at_s if ledger.entries else setup.start_s
    on_demand = setting.baseline_micro_usd()
    hours = setting.job.hours
    billed_hours = math.ceil(hours) if setting.rules == Hourly2016.name else hours
    return Bill(
        ledger.micro_usd + ledger.given_back,
        ledger.given_back,
        (end_s - setup.start_s) / HOUR_S,
        round(on_demand),
        round(on_demand * billed_hours / hours),
        standard,
        standard_given_back,
        STATIC if setting.pools else STANDARD,
        len(began),
        sum(entry.kind is EntryKind.EVICTION for entry in spot),
        machine_s / HOUR_S,
        differences,
        ledger.traffic_micro_usd,
    )


def _since(history: History, start_s: int) -> History:
    """The prices that held at `start_s`, and all later ones."""
    steps = {}
    for market, own in history.steps.items():
        first = max(0, int(own.times.searchsorted(start_s, side="right")) - 1)
        steps[market] = Steps(own.times[first:], own.prices[first:])
    return History(steps, history.end_s, (), history.sources)
