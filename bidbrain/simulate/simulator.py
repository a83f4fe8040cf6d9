"""One job against recorded prices, event by event, with any policy: this module defines what a simulation computes.

At an instant, in this order: hours end and evictions come (in order of acquisition), requests come due, the policy
decides, requests without delay are granted. `kernel` does the same for the built-in policies, faster. An eviction at
the instant at which the work is done does not count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bidbrain.accounts.account import Allocation, JobAccount
from bidbrain.accounts.carried import traffic_lines
from bidbrain.accounts.evidence import LedgerRisk
from bidbrain.accounts.ledger import Carriage, Entry, EvictionCause, Header, Ledger
from bidbrain.billing import RULES, Ending
from bidbrain.history.prices import NEVER_S, Market
from bidbrain.money import HOUR_S
from bidbrain.policy.answer import PolicyError, check_on_demand, checked_decision
from bidbrain.policy.base import (
    Decision,
    GiveBack,
    Keep,
    LetGo,
    MarketView,
    Phase,
    Policy,
    Request,
    RequestOnDemand,
)
from bidbrain.policy.footprint import scaling_efficiency
from bidbrain.setting import Setting, Workload
from bidbrain.simulate.exchange import exchange_of


@dataclass(frozen=True)
class Outcome:
    """The result of a job. Money in micro-dollars, held machines in vCPU seconds."""

    start_s: int
    end_s: int
    finished: bool
    micro_usd: int
    evictions: int
    free_vcpu_s: int
    spot_vcpu_s: int
    on_demand_vcpu_s: int
    traffic_micro_usd: int = 0  # of micro_usd

    @property
    def free_fraction(self) -> float:
        """The share of all held vCPU seconds, on-demand and reliable included, that was refunded."""
        held = self.spot_vcpu_s + self.on_demand_vcpu_s
        return self.free_vcpu_s / held if held else 0.0


class Progress:
    """Work done by machines that come and go (thesis, section 4.5.2: boots, pauses, checkpoints)."""

    def __init__(self, job: Workload, start_s: int) -> None:
        self._job = job
        self._engine = job.engine
        self._first_grant_s: int | None = None
        self._running_s = 0
        self._pause_until_s = start_s
        self.done_vcpu_s = 0.0

    def granted(self, now_s: int) -> None:
        if self._first_grant_s is None:
            self._first_grant_s = now_s
        self._pause_until_s = max(self._pause_until_s, now_s + self._engine.sigma_s)

    def evicted(self, now_s: int) -> None:
        """All work stops for lambda seconds; with checkpoints the work since the last one is lost."""
        self._pause_until_s = max(self._pause_until_s, now_s + self._engine.lambda_s)
        if self._engine.checkpoint_s:
            self._running_s -= self._running_s % self._engine.checkpoint_s
            self.done_vcpu_s = self._running_s * (self._job.vcpus * (1.0 - self._engine.overhead))

    def ready_s(self, allocation: Allocation) -> int:
        """When a machine begins to be useful; on-demand ones at once."""
        if allocation.on_demand:
            return allocation.grant_s
        first = allocation.grant_s == self._first_grant_s
        boot_s = self._engine.boot_s if first else self._engine.boot_again_s
        return allocation.grant_s + boot_s

    def advance(self, now_s: int, then_s: int, workers: list[Allocation]) -> int | None:
        """Work from now until then, in stretches of one rate; returns the instant at which the job is done, or None."""
        job = self._job
        at = now_s
        while at < then_s:
            until = then_s
            vcpus = 0
            if at < self._pause_until_s:
                until = min(until, self._pause_until_s)
            for worker in workers:
                ready_s = self.ready_s(worker)
                if ready_s <= at:
                    vcpus += worker.vcpus
                else:
                    until = min(until, ready_s)
            if vcpus and at >= self._pause_until_s:
                rate = vcpus * scaling_efficiency(vcpus, job.vcpus, job.phi) * (1.0 - self._engine.overhead)
                needed_s = math.ceil((job.work_vcpu_s - self.done_vcpu_s) / rate)
                seconds = min(needed_s, until - at)
                self.done_vcpu_s += rate * seconds
                self._running_s += seconds
                if seconds == needed_s:
                    return at + needed_s
            at = until
        return None


class Simulation:
    """The state of one simulated job; `run` plays it to its end or to that of the history."""

    def __init__(self, setting: Setting, policy: Policy, start_s: int, with_reliable: bool) -> None:
        self._setting = setting
        self._policy = policy
        self._start_s = start_s
        self._books = JobAccount(RULES[setting.rules])
        self._progress = Progress(setting.job, start_s)
        self._exchange = exchange_of(setting)
        self._with_reliable = with_reliable
        self._risk = LedgerRisk(self._books, setting.vcpus_per_machine, lambda: setting.known(start_s))

    def run(self) -> tuple[Outcome, tuple[Entry, ...]]:
        """Play the job. Raises PolicyError for an impossible action of the policy."""
        setting, account = self._setting, self._books
        now_s, end_s = self._start_s, setting.history.end_s
        if self._with_reliable and setting.reliable.vcpus:
            r = setting.reliable
            account.buy_on_demand(now_s, r.market, r.vcpus, r.vcpus_per_machine, r.on_demand, reliable=True)
        wake_s: int | None = now_s
        finished = False
        while True:
            if self._happen(now_s) or now_s == wake_s:
                view = self._view(now_s)
                decision = checked_decision(self._policy.decide(now_s, view), view)
                self._carry_out(now_s, decision)
                wake_s = self._wake_s(now_s, decision)
            then_s = min(end_s, self._next_event_s(now_s), NEVER_S if wake_s is None else wake_s)
            workers = self._books.held()
            workers += [a for a in account.open if a.on_demand and a.number >= 0]
            done_s = self._progress.advance(now_s, then_s, workers)
            finished = done_s is not None
            now_s = then_s if done_s is None else done_s
            if finished or now_s >= end_s:
                break
        return self._close(now_s, finished)

    def _requested(self) -> list[Allocation]:
        return [a for a in self._books.open if a.phase is Phase.REQUESTED and not a.on_demand]

    def _happen(self, now_s: int) -> bool:
        """Apply evictions, ends of hours and due requests of this instant; whether the policy must be asked."""
        account, has_news = self._books, now_s == self._start_s
        gone = self._exchange.taken_back(self._books.held(), now_s)
        for allocation in self._books.held():
            if allocation in gone:
                account.end(now_s, allocation, Ending.EVICTED)
            elif now_s == allocation.hour_start_s + HOUR_S:
                if allocation.phase is Phase.LEAVING:
                    account.end(now_s, allocation, Ending.TERMINATED)
                    has_news = True
                else:
                    account.next_hour(now_s, allocation, self._exchange.price(allocation.market, now_s))
        if gone:
            self._progress.evicted(now_s)
            account.work(now_s, self._progress.done_vcpu_s)
        return self._come_due(now_s) or has_news or bool(gone)

    def _come_due(self, now_s: int) -> bool:
        """Grant or refuse the requests that are due."""
        due = [a for a in self._requested() if a.grant_s == now_s]
        for allocation in due:
            price = self._exchange.price(allocation.market, now_s)
            if self._exchange.grants(allocation, self._books.held(), now_s):
                self._books.grant(now_s, allocation, price)
                self._progress.granted(now_s)
            else:
                self._books.refuse(now_s, allocation, price)
        return bool(due)

    def _view(self, now_s: int) -> MarketView:
        own = tuple(a.holding() for a in self._books.open if a.number >= 0)
        left = self._setting.job.work_vcpu_s - self._progress.done_vcpu_s
        return MarketView(self._exchange.offers(now_s), own, self._setting.job, left, self._risk)

    def _carry_out(self, now_s: int, decision: Decision) -> None:
        account, setting = self._books, self._setting
        full: set[Market] = set()  # markets that have just refused
        for action in decision.actions:
            match action:
                case Request(_, _, _, count):
                    for _ in range(count):
                        if not self._request(now_s, action, decision, full):
                            break
                case RequestOnDemand(kind, vcpus):
                    r = setting.reliable
                    check_on_demand(kind, setting)
                    account.buy_on_demand(now_s, r.market, vcpus, r.vcpus_per_machine, r.on_demand)
                    self._progress.granted(now_s)
                case Keep(number):
                    account.keep(now_s, self._own(number))
                case LetGo(number):
                    account.let_go(now_s, self._own(number))
                case GiveBack(number):
                    account.end(now_s, self._own(number), Ending.TERMINATED)
        if setting.bidding.grant_delay_s == 0:
            self._come_due(now_s)

    def _request(self, now_s: int, request: Request, decision: Decision, full: set[Market]) -> bool:
        """One request of a decision; False if `fill` is reached or its market has just refused, now as before."""
        account, setting = self._books, self._setting
        market, vcpus = request.market, request.vcpus
        if decision.fill is not None and (market in full or account.spot_vcpus + vcpus > decision.fill):
            return False
        if market not in setting.by_market or vcpus <= 0:
            raise PolicyError(f"the policy requests {vcpus} vCPUs of {market}")
        nu = setting.by_market[market].vcpus
        grant_s = now_s + setting.bidding.grant_delay_s
        asked = account.request(now_s, market, vcpus, nu, request.bid, grant_s, decision.reason)
        if decision.fill is not None and grant_s == now_s:
            self._come_due(now_s)
            if asked not in account.open:
                full.add(market)
        return True

    def _own(self, number: int) -> Allocation:
        allocation = self._books.find(number)
        if allocation is None or number < 0 or allocation.phase is Phase.REQUESTED:
            raise PolicyError(f"the policy names allocation {number}, which is not held")
        return allocation

    def _wake_s(self, now_s: int, decision: Decision) -> int | None:
        if decision.wake_s is not None and decision.wake_s <= now_s:
            raise PolicyError(f"the policy asks to be woken at {decision.wake_s}, which is not after {now_s}")
        if not decision.wake_on_market:
            return decision.wake_s
        change_s = self._exchange.next_change_s(now_s)
        return change_s if decision.wake_s is None else min(change_s, decision.wake_s)

    def _next_event_s(self, now_s: int) -> int:
        """The next eviction, end of an hour or request that comes due."""
        held = self._books.held()
        times = [self._exchange.next_eviction_s(held, now_s)]
        times += [a.hour_start_s + HOUR_S for a in held]
        times += [a.grant_s for a in self._requested()]
        return min(times)

    def _close(self, now_s: int, finished: bool) -> tuple[Outcome, tuple[Entry, ...]]:
        account = self._books
        for allocation in list(account.open):
            if allocation.phase is not Phase.REQUESTED:
                account.end(now_s, allocation, Ending.JOB_END)
        account.work(now_s, self._progress.done_vcpu_s)
        outcome = Outcome(
            self._start_s,
            now_s,
            finished,
            sum(entry.micro_usd or 0 for entry in account.entries),
            account.evictions,
            account.free_vcpu_s,
            account.spot_vcpu_s,
            account.on_demand_vcpu_s,
        )
        return outcome, tuple(account.entries)


def header(setting: Setting, scheme: str, start_s: int, name: str) -> Header:
    """The ledger header of a job."""
    types = {listing.market.instance_type: (listing.on_demand, listing.vcpus) for listing in setting.listings}
    r = setting.reliable
    types.setdefault(r.instance_type, (r.on_demand, r.vcpus_per_machine))
    return Header(
        *(name, scheme, start_s, setting.job.hours, setting.rules, types),
        {r.instance_type: r.on_demand},
        setting.job.cap_vcpus,
        EvictionCause.CAPACITY if setting.pools else EvictionCause.PRICE,
        _carriage(setting, start_s),
    )


def _carriage(setting: Setting, start_s: int) -> Carriage | None:
    routes, gb_per_h = setting.routes, setting.job.traffic_gb_per_h
    if routes is None or not gb_per_h:
        return None
    return Carriage(((start_s, gb_per_h),), routes.home, routes.prices)


def with_traffic(outcome: Outcome, ledger: Ledger) -> tuple[Outcome, Ledger]:
    """The same job with the lines of its traffic, if its header says what that costs."""
    if ledger.header.traffic is None:
        return outcome, ledger
    lines = traffic_lines(ledger.entries, ledger.header.types, ledger.header.traffic, outcome.end_s)
    amount = sum(line.micro_usd or 0 for line in lines)
    found = replace(outcome, micro_usd=outcome.micro_usd + amount, traffic_micro_usd=amount)
    return found, replace(ledger, entries=(*ledger.entries, *lines))


def simulate(
    setting: Setting, scheme: str, policy: Policy, start_s: int, with_reliable: bool, name: str = "job"
) -> tuple[Outcome, Ledger]:
    """One job from `start_s`: its outcome and its ledger."""
    outcome, entries = Simulation(setting, policy, start_s, with_reliable).run()
    return with_traffic(outcome, Ledger(header(setting, scheme, start_s, name), entries))
