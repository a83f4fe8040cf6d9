"""A dry run of a job's first decision: the purchases and their cost.

Nothing is bought and nothing is written. A state of its own applies the records that the service would write if every
order were filled: the reliable instances first, then the steps of the decision within the guards.
"""

from __future__ import annotations

from dataclasses import dataclass

from bidbrain.history.prices import Market
from bidbrain.live.cloud import Cloud, Instance
from bidbrain.live.decide import Measurements, allowed, allowed_on_demand, decide, on_demand_size, view_of
from bidbrain.live.guards import of_new
from bidbrain.live.job import JobPlan
from bidbrain.live.journal import Answered, Buy, BuyOnDemand, Decided, Opened, Ordered, Passed
from bidbrain.live.state import JobState
from bidbrain.money import HOUR_S, machine_seconds_micro_usd, show_usd

BY_DEADLINE = ("expected_cost", "spot_2026")  # schemes that buy on demand what would come too late otherwise


class LimitError(ValueError):
    """A job cannot be done within a limit. key: of the limit. detail: what was found, and what is expected."""

    def __init__(self, key: str, detail: str) -> None:
        super().__init__(f"{key}: {detail}")
        self.key, self.detail = key, detail


class BudgetError(LimitError):
    """The budget does not pay for the first hour."""


class MaxPriceError(LimitError):
    """The highest price forbids machines that the scheme will need."""


@dataclass(frozen=True)
class Purchase:
    """A purchase of the decision: how much of it would be bought (vCPUs; 0: nothing), and why not all of it.

    by_guard: a guard of the user is the reason, not the market.
    """

    step: Buy | BuyOnDemand
    vcpus: int
    bid: int
    why: str = ""
    by_guard: bool = False


@dataclass(frozen=True)
class DryRun:
    """Micro-dollars of the first hour at the prices of now (reliable instances included), vCPUs bought, and
    micro-dollars per vCPU hour of work that this means; None where nothing would be bought."""

    decided: Decided
    purchases: tuple[Purchase, ...]
    first_hour: int
    vcpus: int
    per_vcpu_hour: float | None


def dry_run(plan: JobPlan, cloud: Cloud, now_s: int) -> DryRun:
    """Ask the policy as at the job's start. Raises CloudError, PolicyError, BudgetError (less than an hour's money),
    MaxPriceError."""
    setting, reliable = plan.setting, plan.setting.reliable
    state = JobState(setting, [Opened(plan.name, plan.scheme, now_s)])
    quotes = cloud.quotes(now_s)
    hour = reliable.hourly if plan.with_reliable else 0
    _check_budget(plan)
    _check_max_price(plan)
    if hour:
        lot = on_demand_size(reliable.vcpus, reliable.vcpus_per_machine, cloud.together)
        what = (state.orders, reliable.market, *lot, reliable.on_demand, now_s)
        _fill(state, Ordered(now_s, *what, reliable=True), reliable.on_demand)
    view = view_of(setting, state, quotes, Measurements(), plan.limits, 0.0)
    decided = decide(now_s, plan.policy, view, state, quotes, setting, cloud.together)
    state.apply(decided)
    prices = {offer.market: offer.price for offer in quotes.offers}
    purchases = [
        _purchase(step, plan, state, prices, cloud.together)
        for step in decided.steps
        if isinstance(step, Buy | BuyOnDemand)
    ]
    for bought in purchases:
        if isinstance(bought.step, Buy):
            market = bought.step.market
            hour += of_new(
                state.account.rules, bought.vcpus, state.per_instance(market), prices[market], HOUR_S
            )
        else:
            size = (reliable.on_demand, bought.vcpus, reliable.vcpus_per_machine, HOUR_S)
            hour += machine_seconds_micro_usd(*size)
    vcpus = sum(bought.vcpus for bought in purchases)
    return DryRun(decided, tuple(purchases), hour, vcpus, hour / vcpus if vcpus else None)


def _check_budget(plan: JobPlan) -> None:
    """Raise BudgetError where the budget does not pay for the reliable machines until the job could be ended."""
    budget, hold_s, reliable = plan.limits.budget, plan.limits.hold_s, plan.setting.reliable
    if budget is None or not plan.with_reliable or not reliable.vcpus:
        return
    size = (reliable.on_demand, reliable.vcpus, reliable.vcpus_per_machine)
    needed = machine_seconds_micro_usd(*size, hold_s)
    if budget < needed:
        first = "hour" if hold_s == HOUR_S else f"{hold_s / HOUR_S:.2f} h, with the time to drain,"
        raise BudgetError(
            "budget_usd",
            f"found {show_usd(budget)} $, expected at least {show_usd(needed)} $, the first {first} of the reliable "
            "machines alone",
        )


def _check_max_price(plan: JobPlan) -> None:
    """Raise MaxPriceError where no machine may be bought on demand and the scheme cannot do without: it would find out
    when it is too late."""
    most, reliable = plan.limits.max_price, plan.setting.reliable
    has_deadline = plan.scheme in BY_DEADLINE and plan.setting.job.deadline is not None
    if most is None or most >= reliable.on_demand or not (has_deadline or plan.scheme == "on_demand"):
        return
    why = "close to its deadline the job buys them" if has_deadline else "it buys no others"
    raise MaxPriceError(
        "max_price",
        f"found {show_usd(most)} $, expected at least {show_usd(reliable.on_demand)} $, what a machine of "
        f"{reliable.instance_type} costs on demand: {why}",
    )


def _purchase(
    step: Buy | BuyOnDemand, plan: JobPlan, state: JobState, prices: dict[Market, int], together: bool
) -> Purchase:
    """The purchase that the service would make for this step; its records are applied to the state."""
    assert state.decided is not None
    now_s, reliable = state.decided.at_s, plan.setting.reliable
    if isinstance(step, BuyOnDemand):
        may = allowed_on_demand(step, plan.setting, state, plan.limits, now_s, together)
        if may.parts:
            what = (state.orders, reliable.market, may.vcpus, may.parts, may.bid, now_s)
            _fill(state, Ordered(now_s, *what), reliable.on_demand)
        else:
            state.apply(Passed(now_s, may.why))
        return Purchase(step, may.vcpus, may.bid, may.why, may.by_guard)
    may = allowed(step, state, plan.limits, now_s)
    if may.parts:
        what = (state.orders, step.market, may.vcpus, may.parts, may.bid, now_s)
        ordered = Ordered(now_s, *what)
        if state.decided.fill is not None:
            _fill(state, ordered, prices[step.market])
        else:  # answered when all are placed: until then the guards count them at their bids
            state.apply(ordered)
    else:
        state.apply(Passed(now_s, may.why))
    return Purchase(step, may.vcpus, may.bid, may.why, may.by_guard)


def _fill(state: JobState, ordered: Ordered, price: int) -> None:
    """Apply an order and its answer with all instances."""
    state.apply(ordered)
    order = state.pending[ordered.order].order
    instances = tuple(
        Instance(f"{order.token}-{i}", order.token, order.market, ordered.at_s)
        for i in range(order.instances)
    )
    state.apply(Answered(ordered.at_s, ordered.order, price, instances))
