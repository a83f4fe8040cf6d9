"""The account of one job: its allocations from request to end, and a ledger line for everything that happens to them.

The simulator or the live service calls it with events; the billing rules alone decide what things cost. Allocations
stay in order of acquisition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from bidbrain.accounts.ledger import Entry, EntryKind
from bidbrain.billing import Ending, InstanceHour, Rules
from bidbrain.history.prices import Market
from bidbrain.money import HOUR_S, machine_seconds_micro_usd
from bidbrain.policy.base import Holding, Phase

RELIABLE_NUMBER = -1
ENDING_KIND = {
    Ending.EVICTED: EntryKind.EVICTION,
    Ending.TERMINATED: EntryKind.TERMINATION,
    Ending.JOB_END: EntryKind.JOB_END,
}


@dataclass
class Allocation:
    """Machines of one type bought together. hour: its running hour; on_demand: billed by the second, never evicted."""

    number: int
    market: Market
    vcpus: int
    vcpus_per_machine: int
    bid: int
    phase: Phase
    grant_s: int
    hour: InstanceHour
    hour_start_s: int
    on_demand: bool = False

    def holding(self) -> Holding:
        """The allocation as a policy sees it."""
        return Holding(
            *(self.number, self.market, self.vcpus, self.bid, self.phase),
            *(self.grant_s, self.hour_start_s, self.hour.price),
        )


@dataclass
class JobAccount:
    """Open allocations, vCPU seconds held and refunded, and the ledger's entries so far.

    booked: the sum of their micro-dollars. carried: micro-dollars of traffic so far, which has entries in the ledger
    only. ordered: on-demand machines that may have been bought, by a number that their buyer gives them: since when,
    and what an hour of them costs. least_s: the least seconds that an on-demand machine is billed.
    """

    rules: Rules
    open: list[Allocation] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    evictions: int = 0
    spot_vcpu_s: int = 0
    free_vcpu_s: int = 0
    on_demand_vcpu_s: int = 0
    booked: int = 0
    carried: int = 0
    ordered: dict[int, tuple[int, InstanceHour]] = field(default_factory=dict)
    least_s: int = 0
    _numbers: int = 0

    def find(self, number: int) -> Allocation | None:
        """The open allocation of a number, if there is one."""
        return next((a for a in self.open if a.number == number), None)

    def held(self) -> list[Allocation]:
        """Spot allocations that are granted, in order of acquisition."""
        return [a for a in self.open if not a.on_demand and a.phase is not Phase.REQUESTED]

    @property
    def spot_vcpus(self) -> int:
        """Of spot allocations, requested ones too."""
        return sum(a.vcpus for a in self.open if not a.on_demand)

    def request(
        self,
        now_s: int,
        market: Market,
        vcpus: int,
        vcpus_per_machine: int,
        bid: int,
        grant_s: int,
        reason: str,
    ) -> Allocation:
        """A request that will be granted or refused at `grant_s`."""
        hour = InstanceHour(0, 0, vcpus, vcpus_per_machine)
        allocation = Allocation(
            *(self._numbers, market, vcpus, vcpus_per_machine, bid),
            *(Phase.REQUESTED, grant_s, hour, grant_s),
        )
        self._numbers += 1
        self.open.append(allocation)
        self._put(now_s, EntryKind.REQUEST, allocation, bid=bid, reason=reason)
        return allocation

    def grant(self, now_s: int, allocation: Allocation, price: int) -> None:
        """The request is granted: its first hour begins now."""
        allocation.phase = Phase.HELD
        allocation.grant_s = allocation.hour_start_s = now_s
        self._put(now_s, EntryKind.GRANT, allocation, price=price, bid=allocation.bid)
        self._begin(now_s, allocation, InstanceHour(0, price, allocation.vcpus, allocation.vcpus_per_machine))

    def refuse(self, now_s: int, allocation: Allocation, price: int, reason: str | None = None) -> None:
        """The request is refused: the price was above the bid, or there was no capacity. reason: it was another one."""
        self._put(now_s, EntryKind.REFUSED, allocation, price=price, reason=reason)
        self.open.remove(allocation)

    def buy_on_demand(
        self,
        now_s: int,
        market: Market,
        vcpus: int,
        vcpus_per_machine: int,
        price: int,
        reliable: bool = False,
    ) -> Allocation:
        """On-demand machines, granted at once."""
        number = self._reliable_number() if reliable else self._numbers
        self._numbers += 0 if reliable else 1
        hour = InstanceHour(0, price, vcpus, vcpus_per_machine)
        allocation = Allocation(
            *(number, market, vcpus, vcpus_per_machine, price),
            *(Phase.HELD, now_s, hour, now_s),
            on_demand=True,
        )
        self.open.append(allocation)
        self._put(now_s, EntryKind.GRANT, allocation, price=price)
        return allocation

    def _reliable_number(self) -> int:
        """Reliable machines are numbered -1, -2 ...; a number that is free again is taken again."""
        return next(n for n in count(RELIABLE_NUMBER, -1) if self.find(n) is None)

    def next_hour(self, now_s: int, allocation: Allocation, price: int) -> None:
        """The hour is over and the allocation goes on, at the price of this moment."""
        hour = allocation.hour
        self.spot_vcpu_s += allocation.vcpus * HOUR_S
        self._money(now_s, allocation, self.rules.passes(hour))
        allocation.hour_start_s = now_s
        self._begin(
            now_s, allocation, InstanceHour(hour.number + 1, price, hour.vcpus, hour.vcpus_per_machine)
        )

    def keep(self, now_s: int, allocation: Allocation) -> None:
        self._put(now_s, EntryKind.KEEP, allocation, hour=allocation.hour.number)

    def let_go(self, now_s: int, allocation: Allocation) -> None:
        """The allocation will end with its hour."""
        allocation.phase = Phase.LEAVING
        self._put(now_s, EntryKind.LET_GO, allocation, hour=allocation.hour.number)

    def end(self, now_s: int, allocation: Allocation, ending: Ending) -> None:
        """End an allocation and settle its last hour."""
        used_s = now_s - allocation.hour_start_s
        hour = allocation.hour
        self._put(now_s, ENDING_KIND[ending], allocation, hour=hour.number)
        if allocation.on_demand:
            self.on_demand_vcpu_s += allocation.vcpus * used_s
            self._money(now_s, allocation, self.on_demand_cost(hour, used_s))
        else:
            self.spot_vcpu_s += allocation.vcpus * used_s
            self.evictions += ending is Ending.EVICTED
            if self.rules.is_free(hour, used_s, ending):
                self.free_vcpu_s += allocation.vcpus * used_s
            self._money(now_s, allocation, self.rules.closes(hour, used_s, ending))
        self.open.remove(allocation)

    def on_demand_cost(self, hour: InstanceHour, used_s: int) -> int:
        """Micro-dollars for so many seconds of on-demand machines."""
        size = (hour.price, hour.vcpus, hour.vcpus_per_machine)
        return machine_seconds_micro_usd(*size, max(used_s, self.least_s))

    def hint(self, now_s: int, allocation: Allocation) -> None:
        """The cloud said that a machine of the allocation is at risk."""
        self._put(now_s, EntryKind.NOTICE, allocation)

    def work(self, now_s: int, done_vcpu_s: float) -> None:
        """Enter how much work is done by now, in whole vCPU seconds."""
        self.entries.append(Entry(now_s, EntryKind.WORK, done_vcpu_s=int(done_vcpu_s)))

    def _begin(self, now_s: int, allocation: Allocation, hour: InstanceHour) -> None:
        allocation.hour = hour
        self._money(now_s, allocation, self.rules.begins(hour))

    def _money(self, now_s: int, allocation: Allocation, amount: int) -> None:
        if amount != 0:
            kind = EntryKind.CHARGE if amount > 0 else EntryKind.REFUND
            hour = allocation.hour
            self._put(now_s, kind, allocation, price=hour.price, hour=hour.number, micro_usd=amount)

    def _put(
        self,
        now_s: int,
        kind: EntryKind,
        allocation: Allocation,
        price: int | None = None,
        bid: int | None = None,
        hour: int | None = None,
        micro_usd: int | None = None,
        reason: str | None = None,
    ) -> None:
        self.booked += micro_usd or 0
        self.entries.append(
            Entry(
                now_s,
                kind,
                allocation.number,
                allocation.market,
                allocation.vcpus,
                price,
                bid,
                hour,
                micro_usd,
                reason=reason,
            )
        )
