"""The market's part of a report, from the run's events and summary alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def endings(summary: Mapping[str, Any]) -> list[str]:
    """What is said at the end of a run beside its metrics: the comparison with one process, the bill."""
    lines = []
    if "same_as_sequential" in summary:
        same = "the same bits as" if summary["same_as_sequential"] else "NOT the same bits as"
        lines.append(f"{same} one process that trained the same job")
    market = summary.get("market")
    if market is not None:
        if not market["finished"]:
            lines.append(f"ended early: {market['ending']}")
        lines += bill_lines(market)
    return lines


def bill_lines(market: Mapping[str, Any]) -> list[str]:
    """The bill beside what the same job would have cost otherwise."""
    usd = market["usd"]
    took = f"{market['market_hours']:.2f} h of the market, {market['evictions']} evictions"
    lines = [f"bill ${usd:.2f} ({market['policy']}, {took})"]
    job = f"{market['job_vcpus']} vCPUs for {market['job_hours']:g} h"
    lines.append(
        f"  on demand ${market['on_demand_usd']:.2f} ({job}): {_share(usd, market['on_demand_usd'])}"
    )
    standard = market["standard_checkpoint_usd"]
    if standard is not None:
        hours = f"{market['standard_checkpoint_hours']:.2f} h"
        done = (
            "simulated on the same prices"
            if market["standard_checkpoint_finished"]
            else "not done when the prices end"
        )
        lines.append(
            f"  standard bid + checkpoints ${standard:.2f} ({hours}, {done}): {_share(usd, standard)}"
        )
    if market["rebilled_differences"]:
        lines.append(f"  re-billed from the prices: {len(market['rebilled_differences'])} lines differ")
    return lines


def _share(usd: float, other: float) -> str:
    return f"ours is {usd / other:.0%} of it" if other else "-"
