"""Forecasts the cost of a job from recorded prices: the policy plays the job from many starts. Pure.

Recorded prices of today's market say nothing about evictions, so the simulated jobs see none: how many to expect is
said beside them, from the published interruption bands and the hours that each pool would be held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bidbrain.accounts.ledger import ENDINGS, Entry, EntryKind
from bidbrain.history.prices import History, Market
from bidbrain.instants import DAY_S, Interval
from bidbrain.policy.registry import Scheme
from bidbrain.risk.bands import packaged_bands
from bidbrain.setting import ON_DEMAND_ZONE, Setting
from bidbrain.simulate.experiment import Starts, price_margin_s
from bidbrain.simulate.simulator import Outcome, simulate

MOST_STARTS = 60


@dataclass(frozen=True)
class PoolShare:
    """One pool of the simulated jobs. machine_h: per job; loss_per_h: per machine hour, by the published bands."""

    market: Market
    machine_h: float
    loss_per_h: float
    price: int  # micro-dollars per machine hour, the mean of what was asked when machines were bought


@dataclass(frozen=True)
class Forecast:
    """Jobs from several starts. Money in micro-dollars per job, without the head, disks and addresses.

    starts: all of them; costs, hours, evictions and pools are of those that finished. evictions: expected per job.
    reason: of the first decision of the last job. holes: of the recording; no job starts in one. gone: a sentence about
    the pools that the recording lacks, and one for each pool whose recording ends early.
    """

    window: Interval
    starts: int
    finished: int
    cost: float
    cost_p10: float
    cost_p90: float
    hours: float
    evictions: float
    pools: tuple[PoolShare, ...]
    reason: str
    holes: tuple[Interval, ...] = ()
    gone: tuple[str, ...] = ()


def forecast(setting: Setting, scheme: Scheme, history: History) -> Forecast:
    """Play the setting's job with a scheme on recorded prices. Raises ValueError if the recording is too short: no job
    can start in it, or none finishes."""
    listings = tuple(each for each in setting.listings if each.market in history.steps)
    window = history.window
    before = Interval(window.start_s, window.start_s)  # nothing to learn from prices: they evict nothing
    own = scheme.setting(
        replace(
            setting,
            listings=listings,
            history=history.select([each.market for each in listings]),
            train=before,
        )
    )
    weeks = max(1, round(window.seconds / (7 * DAY_S)))
    count = min(MOST_STARTS, max(10, 5 * weeks))
    starts = Starts(count, 0, spread=True).draw(history.usable(window), price_margin_s(own.job.hours))
    outcomes: list[Outcome] = []
    entries: list[Entry] = []
    for start_s in starts:
        outcome, ledger = simulate(own, scheme.name, scheme.make(own, start_s), start_s, scheme.reliable)
        if outcome.finished:  # what another has cost until the recording ended is no job's cost
            outcomes.append(outcome)
            entries.extend(ledger.entries)
    if not outcomes:
        raise ValueError(f"none of {len(starts)} jobs finishes within it")
    costs = np.array([each.micro_usd for each in outcomes], np.float64)
    pools = _pools(own, entries, len(outcomes))
    return Forecast(
        Interval(min(starts), max(starts) + round(3600 * own.job.hours)),
        len(starts),
        len(outcomes),
        float(costs.mean()),
        float(np.percentile(costs, 10)),
        float(np.percentile(costs, 90)),
        float(np.mean([each.end_s - each.start_s for each in outcomes])) / 3600,
        sum(each.machine_h * each.loss_per_h for each in pools),
        pools,
        next((each.reason for each in ledger.entries if each.reason), "nothing is bought"),
        history.holes,
        (*_missing_notes(setting, history), *own.history.market_notes),
    )


def _missing_notes(setting: Setting, history: History) -> tuple[str, ...]:
    """A sentence about the pools of the job that the recording lacks, if there are any."""
    missing = [str(each.market) for each in setting.listings if each.market not in history.steps]
    return (f"the recording has no prices of {', '.join(missing)}: no figure counts them",) if missing else ()


def _pools(setting: Setting, entries: Sequence[Entry], jobs: int) -> tuple[PoolShare, ...]:
    """The pools that were held, those of most machine hours first. entries: of all jobs, one after another."""
    granted: dict[int, Entry] = {}
    hours: dict[Market, float] = {}
    bought: dict[Market, list[tuple[int, float]]] = {}  # price, machines
    for entry in entries:
        market, number = entry.market, entry.allocation
        if market is None or number is None or entry.vcpus is None or market.zone == ON_DEMAND_ZONE:
            continue
        machines = entry.vcpus / setting.vcpus_per_machine(market)
        if entry.kind is EntryKind.GRANT:
            granted[number] = entry
            bought.setdefault(market, []).append((entry.price or 0, machines))
        elif entry.kind in ENDINGS:
            held_h = (entry.at_s - granted[number].at_s) / 3600
            hours[market] = hours.get(market, 0.0) + machines * held_h
    bands = packaged_bands()
    found = []
    for market, total in hours.items():
        price = sum(p * m for p, m in bought[market]) / sum(m for _, m in bought[market])
        found.append(PoolShare(market, total / jobs, bands.rate(market), round(price)))
    return tuple(sorted(found, key=lambda each: (-each.machine_h, each.market)))
