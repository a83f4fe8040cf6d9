"""The first decision of a job without making it: what would be bought, and what it would cost.

Nothing is bought and nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass

from bidbrain.live.cloud import Cloud
from bidbrain.live.decide import Measured, allowed, decide, view_of
from bidbrain.live.desk import Desk
from bidbrain.live.guards import of_new
from bidbrain.live.job import Plan
from bidbrain.live.journal import Buy, BuyOnDemand, Decided, Opened
from bidbrain.money import HOUR_S, machine_seconds_micro_usd, show_usd


class BudgetError(ValueError):
    """A budget that does not pay for the first hour, in one sentence."""


@dataclass(frozen=True)
class DryRun:
    """Micro-dollars of the first hour at the prices of now (reliable machines included), vCPUs bought, and
    micro-dollars per vCPU hour of work that this means; None where nothing would be bought."""

    decided: Decided
    first_hour: int
    vcpus: int
    per_vcpu_hour: float | None


def dry_run(plan: Plan, cloud: Cloud, now_s: int) -> DryRun:
    """Ask the policy as at the job's start. Raises CloudError, PolicyError, and BudgetError for less than an hour."""
    setting, reliable = plan.setting, plan.setting.reliable
    desk = Desk(setting, [Opened(plan.name, plan.scheme, now_s)])
    quotes = cloud.quotes(now_s)
    view = view_of(setting, desk, quotes, Measured(), plan.guards, 0.0)
    decided = decide(now_s, plan.policy, view, desk, quotes, setting, cloud.together)
    desk.apply(decided)
    prices = {offer.market: offer.price for offer in quotes.offers}
    hour = reliable.hourly if plan.with_reliable else 0
    budget = plan.guards.budget
    if budget is not None and budget < hour:
        raise BudgetError(
            f"budget_usd: found {show_usd(budget)} $, expected at least {show_usd(hour)} $, "
            "the first hour of the reliable machines alone"
        )
    vcpus = 0
    left = setting.job.cap_vcpus
    for step in decided.steps:
        if isinstance(step, Buy):
            may = allowed(step, desk, plan.guards, now_s)
            size = min(may.vcpus, left)  # later requests of a decision repeat what earlier pools may refuse
            hour += of_new(desk.books.rules, size, desk.per_machine(step.market), prices[step.market], HOUR_S)
        elif isinstance(step, BuyOnDemand):
            size = step.vcpus
            what = (reliable.on_demand, size, reliable.vcpus_per_machine, HOUR_S)
            hour += machine_seconds_micro_usd(*what)
        else:
            continue
        vcpus += size
        left -= size
    return DryRun(decided, hour, vcpus, hour / vcpus if vcpus else None)
