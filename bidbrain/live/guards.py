"""Limits that no policy can pass: budget, price, instances, and what is given back for others. Pure.

The budget is compared with an exposure: the bill if everything open now is held until an instant and then terminated by
us, which is the most expensive ending. Future hours count at the bid, the highest price they can have: an instance
whose price passes its bid is evicted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from bidbrain.accounts.account import Allocation, JobAccount
from bidbrain.billing import Ending, InstanceHour, Rules
from bidbrain.money import HOUR_S, show_usd
from bidbrain.policy.base import Phase


@dataclass(frozen=True)
class Guards:
    """Money in micro-dollars; None is no limit. reserve_s: seconds of cost kept back to drain and to react late.

    The budget forbids purchases that could not be held for `hold_s`, and stops the job when only the reserve is left.
    """

    budget: int | None = None
    max_price: int | None = None
    max_machines: int | None = None
    reserve_s: int = 300
    hold_s: int = HOUR_S

    def lasting(self, seconds: int) -> Guards:
        """The same limits for a job whose end takes `seconds`, during which it still pays for its machines."""
        reserve_s, hold_s = max(self.reserve_s, seconds), max(self.hold_s, seconds)
        return replace(self, reserve_s=reserve_s, hold_s=hold_s)


def spent(account: JobAccount) -> int:
    """The bill so far, as booked, with the traffic so far."""
    return account.booked + account.carried


def exposure(account: JobAccount, now_s: int, until_s: int) -> int:
    """The bill if all open allocations and orders are held until `until_s` and then terminated."""
    held = sum(to_come(account, each, now_s, until_s) for each in account.open)
    return spent(account) + held + ordered(account, until_s)


def ordered(account: JobAccount, until_s: int) -> int:
    """The most that on-demand orders without an answer add to the bill by then: they may have bought at once."""
    return sum(
        account.on_demand_cost(hour, max(0, until_s - since_s)) for since_s, hour in account.ordered.values()
    )


def to_come(account: JobAccount, allocation: Allocation, now_s: int, until_s: int) -> int:
    """The most that an allocation still adds to the bill by then."""
    rules, hour = account.rules, allocation.hour
    if allocation.on_demand:
        return account.on_demand_cost(hour, until_s - allocation.hour_start_s)
    size = (allocation.vcpus, allocation.vcpus_per_machine, allocation.bid)
    if allocation.phase is Phase.REQUESTED:
        return of_new(rules, *size, until_s - min(now_s, allocation.grant_s))
    left_s = until_s - allocation.hour_start_s
    if left_s <= HOUR_S or allocation.phase is Phase.LEAVING:
        return rules.closes(hour, min(left_s, HOUR_S), Ending.TERMINATED)
    return rules.passes(hour) + of_new(rules, *size, left_s - HOUR_S, hour.number + 1)


def of_new(rules: Rules, vcpus: int, vcpus_per_machine: int, bid: int, seconds: int, number: int = 0) -> int:
    """The most that `seconds` of a spot allocation cost from instance hour `number` on, if we then end it."""
    amount = 0
    while True:
        hour = InstanceHour(number, bid, vcpus, vcpus_per_machine)
        amount += rules.begins(hour)
        if seconds <= HOUR_S:
            return amount + rules.closes(hour, seconds, Ending.TERMINATED)
        amount += rules.passes(hour)
        seconds -= HOUR_S
        number += 1


def over_budget(guards: Guards, account: JobAccount, now_s: int) -> str | None:
    """The reason to stop the job: its instances would pass the budget within the reserve. None if they would not."""
    if guards.budget is None:
        return None
    amount = exposure(account, now_s, now_s + guards.reserve_s)
    if amount <= guards.budget:
        return None
    return (
        f"the budget of {show_usd(guards.budget)} $ is reached: {show_usd(spent(account))} $ are booked, "
        f"{show_usd(amount)} $ if all is held for another {guards.reserve_s} s"
    )


def affordable(
    guards: Guards, account: JobAccount, now_s: int, extra: int, leaving: Collection[int] = ()
) -> str | None:
    """The reason that forbids a purchase: with its `extra` cost, not all could be held for `hold_s`. None if allowed.

    leaving: allocations that are given back once it is made; they count for the reserve's seconds alone.
    """
    if guards.budget is None:
        return None
    until_s, soon_s = now_s + guards.hold_s, now_s + min(guards.hold_s, guards.reserve_s)
    amount = spent(account) + ordered(account, until_s) + extra
    for each in account.open:
        amount += to_come(account, each, now_s, soon_s if each.number in leaving else until_s)
    if amount <= guards.budget:
        return None
    return f"guard budget: {show_usd(amount)} $ with it, the budget is {show_usd(guards.budget)} $"


@dataclass(frozen=True)
class Replacing:
    """The limit on what a decision that buys on demand gives back: no more than it has bought, until it has bought all.

    short_vcpus: asked for and not bought. spare_vcpus: bought, and nothing given back for them yet.
    """

    short_vcpus: int = 0
    spare_vcpus: int = 0

    def bought(self, asked_vcpus: int, got_vcpus: int) -> Replacing:
        """After a purchase of `asked_vcpus` that brought `got_vcpus`."""
        short = self.short_vcpus + max(0, asked_vcpus - got_vcpus)
        return Replacing(short, self.spare_vcpus + got_vcpus)

    def may_give_back(self, vcpus: int) -> bool:
        """True if the job would still have what the decision intended, or as much as before."""
        return not self.short_vcpus or vcpus <= self.spare_vcpus

    def gave_back(self, vcpus: int) -> Replacing:
        """After the job gave `vcpus` back."""
        return replace(self, spare_vcpus=max(0, self.spare_vcpus - vcpus))
