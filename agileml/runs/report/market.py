"""The market's part of a report, from the run's events and summary alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agileml.runs.summary import Event, of_kind

STANDARDS = {
    "standard_checkpoint": "standard bid + checkpoints",
    "static_checkpoint": "all nodes in one pool + checkpoints",
}


def endings(summary: Mapping[str, Any], clocks: int) -> list[str]:
    """What is said at the end of a run of `clocks`, beside its metrics: the comparison with one process, the bill."""
    lines = []
    if "same_as_sequential" in summary:
        same = "the same bits as" if summary["same_as_sequential"] else "NOT the same bits as"
        lines.append(f"{same} one process that trained the same job")
    market = summary.get("market")
    if market is not None:
        if not market["finished"]:
            lines.append(f"ended early, {summary['clocks']} of {clocks} clocks: {market['ending']}")
        lines += bill_lines(market)
    return lines


def bill_lines(market: Mapping[str, Any]) -> list[str]:
    """The bill beside what the same job would have cost otherwise; without that where only a part of it was done."""
    usd = market["usd"]
    took = f"{market['market_hours']:.2f} h of the market, {market['evictions']} evictions"
    lines = [f"bill ${usd:.2f} ({market['policy']}, {took})"]
    return lines + (_compared(market) if market["finished"] else []) + _rebilled(market)


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
    """The market's figures that one looks at first."""
    market = summary.get("market")
    if market is None:
        return []
    found = [("bill", f"${market['usd']:.2f}")]
    if market["finished"]:  # the others are prices of the whole job
        found.append(("on demand", f"${market['on_demand_usd']:.2f}"))
    if market["finished"] and market["standard_checkpoint_usd"] is not None:
        found.append((STANDARDS[market["standard"]], f"${market['standard_checkpoint_usd']:.2f}"))
    return [*found, ("evictions", str(market["evictions"]))]


def decisions(events: Sequence[Event]) -> list[tuple[str, str, str]]:
    """(market time, what, text) of every decision that did something, and of what came of it."""
    opened = of_kind(events, "market_opened")
    if not opened:
        return []
    rows = []
    for event in events:
        said = sentence(event)
        if said is not None and (event["kind"] != "decision" or event["steps"]):
            rows.append((_market_time(event, opened[0]["market_s"]), *said))
    return rows


def _market_time(event: Event, start_s: int) -> str:
    minutes, seconds = divmod(max(0, event["market_s"] - start_s), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def sentence(event: Event) -> tuple[str, str] | None:
    """(what, text) for an event of the market; None for those that are only drawn."""
    machines = ", ".join(map(str, event.get("machines", ())))
    match event["kind"]:
        case "decision":
            return "decided", f"{'; '.join(event['steps'])} ({event['reason']})" if event["steps"] else event[
                "reason"
            ]
        case "market_grant":
            bid = "" if event["reliable"] else f", bid {event['bid_usd_per_h']:.4f}"
            return "bought", f"{machines}: {event['market']} at {event['price_usd_per_h']:.4f} $/h{bid}"
        case "market_refusal":
            return "refused", f"{event['market']}: {event['reason']}"
        case "market_notice":
            return "notice", f"{event['machine']} will be taken" if event["alert"] == "terminate" else event[
                "machine"
            ]
        case "market_end":
            return event["ending"].replace("_", " "), f"allocation {event['allocation']} ({event['market']})"
        case "market_passed":
            return "left out", str(event["reason"])
        case "market_stray":
            return "stray", f"{event['machine']} belonged to nothing and was given back"
        case "market_draining" | "market_closing":
            return event["kind"].removeprefix("market_"), str(event["reason"])
        case _:
            return None
