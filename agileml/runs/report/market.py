"""The market's part of a report, from the run's events and summary alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agileml.events.market import (
    AllocationEnded,
    DecisionTaken,
    InstanceAtRisk,
    InstanceNoticed,
    InstancesBought,
    MarketClosing,
    MarketDraining,
    PurchaseRefused,
    StepPassed,
    StrayFound,
)
from agileml.events.schema import RunEvent

STANDARDS = {
    "standard_checkpoint": "standard bid + checkpoints",
    "static_checkpoint": "all nodes in one pool + checkpoints",
}


def endings(summary: Mapping[str, Any], clocks: int) -> list[str]:
    """The lines at the end of a run of `clocks`, beside its metrics: the comparison with one process, the bill."""
    lines = []
    if summary.get("same_as_sequential") is not None:  # None: told to stop before it knew
        same = "the same bits as" if summary["same_as_sequential"] else "NOT the same bits as"
        lines.append(f"{same} one process that trained the same job")
    if "same_as_replayed" in summary:
        lines.append(
            f"{'the' if summary['same_as_replayed'] else 'NOT the'} same bits as the run whose log it followed"
        )
    market = summary.get("market")
    if market is not None:
        if not market["finished"]:
            lines.append(f"ended early, {summary['clocks']} of {clocks} clocks: {market['ending']}")
        if resumed_from := summary.get("resumed_from"):
            lines.append(f"resumed from clock {resumed_from}: the clocks before it are on another bill")
        lines += bill_lines(market, is_whole=_is_whole(summary))
    return lines


def _is_whole(summary: Mapping[str, Any]) -> bool:
    """Whether the bill is that of the whole job, as prices beside it are: from its start to its end."""
    finished: bool = summary["market"]["finished"]
    return finished and not summary.get("resumed_from")


def bill_lines(market: Mapping[str, Any], *, is_whole: bool) -> list[str]:
    """The bill, and for a whole job the cost of the alternatives."""
    usd = market["usd"]
    took = f"{market['market_hours']:.2f} h of the market, {market['evictions']} evictions"
    lines = [f"bill ${usd:.2f} ({market['policy']}, {took})"]
    if (traffic := market.get("traffic_usd", 0.0)) > 0:
        lines.append(f"  of it ${traffic:.2f} for traffic between zones, as the run measured it")
    compared = _compared(market) if is_whole else []
    return lines + compared + _by_thesis(market, is_whole=is_whole) + _rebilled(market)


def _by_thesis(market: Mapping[str, Any], *, is_whole: bool) -> list[str]:
    """The same figures by the thesis' convention, where they differ; a summary of an older run has none."""
    other = market.get("thesis")
    if other is None or other["usd"] == market["usd"]:
        return []
    sentence = f"  if unused parts of the last hours were not charged, as in the thesis: ${other['usd']:.2f}"
    if not is_whole:
        return [sentence]
    beside = [f"on demand ${other['on_demand_usd']:.2f}"]
    if other["standard_checkpoint_usd"] is not None:
        beside.append(f"{STANDARDS[market['standard']]} ${other['standard_checkpoint_usd']:.2f}")
    return [f"{sentence} ({', '.join(beside)})"]


def _compared(market: Mapping[str, Any]) -> list[str]:
    usd = market["usd"]
    job = f"{market['job_vcpus']} vCPUs for {market['job_hours']:g} h"
    lines = [f"  on demand ${market['on_demand_usd']:.2f} ({job}): {_share(usd, market['on_demand_usd'])}"]
    standard = market["standard_checkpoint_usd"]
    if standard is not None:
        hours = f"{market['standard_checkpoint_hours']:.2f} h"
        done = (
            "simulated on the same prices"
            if market["standard_checkpoint_finished"]
            else "not done when the prices end"
        )
        name = STANDARDS[market["standard"]]
        lines.append(f"  {name} ${standard:.2f} ({hours}, {done}): {_share(usd, standard)}")
    return lines


def _rebilled(market: Mapping[str, Any]) -> list[str]:
    differences = market["rebilled_differences"]
    return [f"  re-billed from the prices: {len(differences)} lines differ"] if differences else []


def _share(usd: float, other: float) -> str:
    return f"ours is {usd / other:.0%} of it" if other else "-"


def tiles(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The market's headline figures."""
    market = summary.get("market")
    if market is None:
        return []
    found = [("bill", f"${market['usd']:.2f}")]
    is_whole = _is_whole(summary)
    if is_whole:
        found.append(("on demand", f"${market['on_demand_usd']:.2f}"))
    if is_whole and market["standard_checkpoint_usd"] is not None:
        found.append((STANDARDS[market["standard"]], f"${market['standard_checkpoint_usd']:.2f}"))
    return [*found, ("evictions", str(market["evictions"]))]


def sentence(event: RunEvent) -> tuple[int, str, str] | None:
    """(market time, what, text) for an event of the market; None if it is only drawn."""
    match event:
        case DecisionTaken(at_s, steps, reason) if steps:
            return at_s, "decided", f"{'; '.join(steps)} ({reason})"
        case InstancesBought(at_s, market, instances):
            bid = "" if event.reliable else f", bid {event.bid_usd_per_h:.4f}"
            price = f"{market} at {event.price_usd_per_h:.4f} $/h"
            return at_s, "bought", f"{', '.join(instances)}: {price}{bid}"
        case PurchaseRefused(at_s, market):
            return at_s, "refused", f"{market}: {event.reason}"
        case InstanceNoticed(at_s, instance):
            return at_s, "notice", f"{instance} will be taken"
        case InstanceAtRisk(at_s, instance):
            return at_s, "notice", instance
        case AllocationEnded(at_s, allocation, ending, market):
            return at_s, ending.replace("_", " "), f"allocation {allocation} ({market})"
        case StepPassed(at_s, reason):
            return at_s, "left out", reason
        case StrayFound(at_s, instance):
            return at_s, "stray", f"{instance} belonged to nothing and was given back"
        case MarketDraining(at_s, reason):
            return at_s, "draining", reason
        case MarketClosing(at_s, reason):
            return at_s, "closing", reason
        case _:
            return None
