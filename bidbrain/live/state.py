"""The state of a live job, folded from its journal. Pure: equal records give equal states, also after a restart.

`apply` turns records into calls of `JobAccount`, so a live ledger is what the simulator would have written. It also
holds work in progress: the decision being carried out, unanswered orders, instances by allocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from bidbrain.accounts.account import Allocation, JobAccount
from bidbrain.accounts.carried import Carried
from bidbrain.accounts.evidence import LedgerRisk
from bidbrain.accounts.ledger import Carriage, Entry, EvictionCause, Header, Ledger
from bidbrain.billing import RULES, Ending, InstanceHour
from bidbrain.history.prices import NEVER_S, Market
from bidbrain.live.cloud import Alert, EndedInstance, Instance, InstanceNotice, Order
from bidbrain.live.guards import Replacing
from bidbrain.live.journal import (
    Answered,
    BuyOnDemand,
    Closed,
    Closing,
    Decided,
    Draining,
    Ended,
    HourPassed,
    Mark,
    Marked,
    Marking,
    Noticed,
    Opened,
    Ordered,
    Passed,
    Record,
    Released,
    Step,
    Stray,
    Troubled,
    Worked,
)
from bidbrain.live.troubles import Failures
from bidbrain.money import HOUR_S
from bidbrain.policy.base import Phase
from bidbrain.risk.book import Known
from bidbrain.setting import Setting
from bidbrain.simulate.simulator import header


@dataclass(frozen=True)
class Pending:
    """An order without an answer, and the allocations that wait for it (none for on-demand instances).

    wanted_vcpus: of on-demand instances that the decision asked for; the limits may have left less to order.
    """

    ordered: Ordered
    order: Order
    numbers: tuple[int, ...]
    wanted_vcpus: int = 0


class JobState:
    """The state that the journal's records add up to. Only `apply` changes it."""

    def __init__(self, setting: Setting, records: Iterable[Record] = ()) -> None:
        self._setting = setting
        self.account = JobAccount(RULES[setting.rules])
        self.risk = LedgerRisk(self.account, setting.vcpus_per_machine, self._known)
        self.opened: Opened | None = None
        self.decided: Decided | None = None
        self.cursor = 0
        self.replacing = Replacing()
        self.has_news = False  # an event happened that the policy has not been asked about
        self.work_due = False  # there were evictions since the work was last journaled
        self.had_reliable = False
        self.full: set[Market] = set()  # markets that refused an order of the newest decision
        self.in_vain = 0  # decisions in a row that bought nothing because of a quota or a limit
        self._is_sold = self._is_forbidden = False  # the answers to the newest decision's orders
        self.failures = Failures()
        self.pending: dict[int, Pending] = {}
        self.instances: dict[int, tuple[Instance, ...]] = {}
        self.noticed: dict[str, InstanceNotice] = {}  # by id
        self.at_risk: set[int] = set()  # allocations with an instance that the cloud has warned of
        self._early: list[InstanceNotice] = []  # of instances that no answer has brought yet
        self.draining: Draining | None = None
        self.closing: Closing | None = None
        self.closed: Closed | None = None
        self.released: dict[str, int] = {}  # when the cloud took instances back at the job's end
        self.troubles: tuple[str, ...] = ()
        self.strays = self.orders = 0
        self._traffic: list[tuple[int, float]] = []  # (from when on, GB per hour of a machine)
        self._carried: Carried | None = None
        for record in records:
            self.apply(record)

    def _known(self) -> Known:
        assert self.opened is not None
        return self._setting.known(self.opened.start_s)

    def apply(self, record: Record) -> None:
        """Change the state by one record."""
        match record:
            case Opened():
                self.opened, self.has_news = record, True
                self.account.least_s = record.least_s
            case Decided():
                self.decided, self.cursor, self.has_news = record, 0, False
                self.replacing = Replacing()
                self.in_vain = self.in_vain + 1 if self._is_forbidden and not self._is_sold else 0
                self._is_sold = self._is_forbidden = False
                self.full.clear()
                self._moves(record)
            case Ordered():
                self._order(record)
            case Answered():
                self._answer(record)
                self._warn(record.at_s, self._early)
            case Passed():
                self.replacing = self.replacing.bought(self._wanted, 0)
                self.cursor += 1
            case Marked(at_s):
                self._mark(at_s)
            case Ended(at_s, number, ending, step):
                self._end(at_s, number, ending, step)
            case HourPassed(at_s, number, price):
                self.account.next_hour(at_s, self._open(number), price)
                self.failures.lasted(self._open(number).market, self._open(number).grant_s)
            case Worked(at_s, done_vcpu_s):
                self.account.work(at_s, done_vcpu_s)
                self.work_due = False
            case Noticed():
                self._notice(record)
            case Stray():
                self.strays += 1
            case Troubled(_, sentences):
                self.troubles = sentences
            case Draining():
                self.draining = record
            case Closing():
                self.closing = record
            case Released(at_s, instance_ids):
                self.released = dict.fromkeys(instance_ids, at_s) | self.released
            case Closed(at_s, done_vcpu_s):
                self.account.work(at_s, done_vcpu_s)
                self.closed = record
                self.carry(at_s)

    def _order(self, record: Ordered) -> None:
        assert self.opened is not None
        per_instance = self.per_instance(record.market)
        token = f"{self.opened.job}-{record.order}"
        order = Order(token, record.market, record.vcpus, per_instance, record.bid)
        numbers: tuple[int, ...] = ()
        if not order.on_demand:
            assert self.decided is not None
            each = record.vcpus // record.parts
            what = (record.at_s, record.market, each, per_instance, record.bid, record.due_s)
            numbers = tuple(
                self.account.request(*what, self.decided.reason).number for _ in range(record.parts)
            )
        else:
            hour = InstanceHour(0, record.bid, record.vcpus, per_instance)
            self.account.ordered[record.order] = record.at_s, hour
        self.pending[record.order] = Pending(record, order, numbers, 0 if record.reliable else self._wanted)
        self.orders += 1
        self.cursor += not record.reliable

    def _answer(self, record: Answered) -> None:
        pending = self.pending.pop(record.order)
        self.account.ordered.pop(record.order, None)
        ordered, order, instances = pending.ordered, pending.order, record.instances
        self.has_news |= ordered.due_s > ordered.at_s
        whole = len(instances) >= order.instances
        self._is_sold |= bool(instances)
        self._is_forbidden |= not record.by_market
        if order.on_demand:
            self._buy_on_demand(record, ordered, order)
            self.had_reliable |= ordered.reliable and bool(instances)
            if pending.wanted_vcpus:
                got_vcpus = len(instances) * order.vcpus_per_machine
                self.replacing = self.replacing.bought(pending.wanted_vcpus, got_vcpus)
            return
        if not instances or (len(pending.numbers) > 1 and not whole):
            self.full.add(order.market)
        if len(pending.numbers) == 1:
            shares = [instances]
        else:
            shares = [instances[i : i + 1] for i in range(len(pending.numbers))]
        for number, share in zip(pending.numbers, shares, strict=True):
            allocation = self._open(number)
            if not share:
                why = None if record.by_market else record.why
                self.account.refuse(record.at_s, allocation, record.price, why)
                continue
            if len(pending.numbers) == 1 and not whole:
                allocation.vcpus = len(share) * order.vcpus_per_machine
            self.account.grant(record.at_s, allocation, record.price)
            self.instances[number] = share

    def _buy_on_demand(self, record: Answered, ordered: Ordered, order: Order) -> None:
        """Open one allocation, or one for each machine where machines end, and are billed, one by one."""
        each, instances = order.vcpus_per_machine, record.instances
        if ordered.parts > 1:
            lots = [(each, instances[i : i + 1]) for i in range(len(instances))]
        else:
            vcpus = order.vcpus if len(instances) >= order.instances else len(instances) * each
            lots = [(vcpus, instances)] if instances else []
        for vcpus, lot in lots:
            what = (order.market, vcpus, each, record.price)
            bought = self.account.buy_on_demand(record.at_s, *what, reliable=ordered.reliable)
            self.instances[bought.number] = lot

    def _notice(self, record: Noticed) -> None:
        """Remember notices. A rebalance hint goes to the ledger too: it is evidence of its pool's risk."""
        self.noticed.update((notice.notice_id, notice) for notice in record.notices)
        self._warn(record.at_s, (*self._early, *record.notices))

    def _warn(self, now_s: int, notices: Iterable[InstanceNotice]) -> None:
        """Apply notices of held instances; keep the others while an order has no answer, which may be theirs."""
        self._early = []
        for notice in notices:
            number = self._number_of(notice.instance_id)
            if number is None:
                self._early += [notice] if self.pending else []
                continue
            self.at_risk.add(number)
            self.has_news |= self.decided is not None and self.decided.wake_on_notice
            if notice.alert is Alert.REBALANCE:
                entries = self.account.entries
                at_s = max(now_s, entries[-1].at_s if entries else now_s)
                self.account.hint(at_s, self._open(number))

    @property
    def warned(self) -> frozenset[int]:
        """Open allocations that the cloud has warned of."""
        return frozenset(number for number in self.at_risk if number in self.instances)

    def _number_of(self, instance_id: str) -> int | None:
        """The allocation of an instance that is held."""
        for number, own in self.instances.items():
            if any(instance.instance_id == instance_id for instance in own):
                return number
        return None

    def _mark(self, at_s: int) -> None:
        step = self.step
        assert isinstance(step, Mark)
        if step.what is Marking.KEEP:
            self.account.keep(at_s, self._open(step.number))
        else:
            self.account.let_go(at_s, self._open(step.number))
        self.cursor += 1

    def _end(self, at_s: int, number: int, ending: Ending, step: bool) -> None:
        allocation = self._open(number)
        if ending is Ending.TERMINATED and not step and allocation.phase is not Phase.LEAVING:
            self.failures.ended(allocation.market, allocation.grant_s, at_s)
        self.account.end(at_s, allocation, ending)
        self.instances.pop(number, None)
        if step:
            self.replacing = self.replacing.gave_back(allocation.vcpus)
        self.cursor += step
        self.has_news |= not step
        self.work_due |= ending is Ending.EVICTED

    def _open(self, number: int) -> Allocation:
        allocation = self.account.find(number)
        assert allocation is not None, f"allocation {number} is not open"
        return allocation

    def per_instance(self, market: Market) -> int:
        """vCPUs of one instance of a market."""
        return self._setting.vcpus_per_machine(market)

    @property
    def step(self) -> Step | None:
        """The next step of the current decision; None: all are taken."""
        steps = () if self.decided is None else self.decided.steps
        return steps[self.cursor] if self.cursor < len(steps) else None

    @property
    def _wanted(self) -> int:
        """vCPUs that the next step buys on demand."""
        return self.step.vcpus if isinstance(self.step, BuyOnDemand) else 0

    @property
    def asks(self) -> bool:
        """True if an event calls for a decision of the policy."""
        return self.has_news and self.draining is None

    @property
    def last_s(self) -> int:
        """The instant of the ledger's last entry, else of the job's start."""
        assert self.opened is not None
        entries = self.account.entries
        return entries[-1].at_s if entries else self.opened.start_s

    @property
    def wake_s(self) -> int | None:
        """When the policy asked to decide again; None: it named no time."""
        return None if self.decided is None else self.decided.wake_s

    @property
    def instance_count(self) -> int:
        """Instances that are held or ordered."""
        ordered = sum(each.order.instances for each in self.pending.values())
        return ordered + sum(len(own) for own in self.instances.values())

    @property
    def has_reliable(self) -> bool:
        return any(allocation.number < 0 for allocation in self.account.open)

    @property
    def lacks_reliable(self) -> int:
        """How many reliable instances the job should have, and has neither got nor ordered."""
        reliable = self._setting.reliable
        there = sum(allocation.vcpus for allocation in self.account.open if allocation.number < 0)
        there += sum(each.order.vcpus for each in self.pending.values() if each.ordered.reliable)
        return max(0, -((there - reliable.vcpus) // reliable.vcpus_per_machine))

    @property
    def kept_free(self) -> int:
        """Instances for which other purchases must leave room: lost reliable ones."""
        return self.lacks_reliable if self.had_reliable else 0

    def due(self, now_s: int) -> list[Pending]:
        """Orders that must be placed, or asked about again, now."""
        return [each for each in self.pending.values() if each.ordered.due_s <= now_s]

    def next_s(self, after_s: int = -1) -> int:
        """The next end of an hour, due order, wake-up or deadline of draining. after_s: until then, none."""
        times = [a.hour_start_s + HOUR_S for a in self.account.held()]
        times += [each.ordered.due_s for each in self.pending.values()]
        if self.wake_s is not None and self.draining is None:
            times.append(self.wake_s)
        if self.draining is not None:
            times.append(self.draining.deadline_s)
        return min((at_s for at_s in times if at_s > after_s), default=NEVER_S)

    def hour_end_notices(self, number: int) -> tuple[InstanceNotice, ...]:
        """Notices for the instances of an allocation that leaves at the end of its hour."""
        deadline_s = self._open(number).hour_start_s + HOUR_S
        return tuple(
            InstanceNotice(f"hour-end-{each.instance_id}", each.instance_id, Alert.HOUR_END, deadline_s)
            for each in self.instances.get(number, ())
        )

    def over(self, ended: Iterable[EndedInstance]) -> dict[int, EndedInstance]:
        """Allocations that are over because these instances ended, each with its last one."""
        by_id = {each.instance_id: each for each in ended}
        found: dict[int, EndedInstance] = {}
        for allocation in self.account.open:
            own = [by_id.get(each.instance_id) for each in self.instances.get(allocation.number, ())]
            gone = [each for each in own if each is not None]
            # Instances of a price market go together; an on-demand allocation is over when its last instance is.
            if gone and (len(gone) == len(own) or not allocation.on_demand):
                found[allocation.number] = max(gone, key=lambda each: each.at_s)
        return found

    def open_instances(self) -> Iterator[Instance]:
        return (each for own in self.instances.values() for each in own)

    def carry(self, now_s: int) -> None:
        """Account for the traffic up to now: no record has it, but the budget must include it."""
        self.account.carried = sum(line.micro_usd or 0 for line in self._traffic_lines(self._top(), now_s))

    def _moves(self, record: Decided) -> None:
        """From a decision on, count the traffic of machines at the rate that the decision assumed."""
        gb_per_h = record.figures.traffic_gb_per_h
        if gb_per_h != (self._traffic[-1][1] if self._traffic else 0.0):
            self._traffic.append((record.at_s, gb_per_h))

    def _top(self) -> Header:
        opened, routes, rates = self.opened, self._setting.routes, tuple(self._traffic)
        assert opened is not None
        carriage = Carriage(rates, routes.home, routes.prices) if routes is not None and rates else None
        top = header(self._setting, opened.scheme, opened.start_s, opened.job)
        cause = EvictionCause.CAPACITY if opened.least_s else top.evictions  # a cloud's, below the bid
        return replace(top, least_s=opened.least_s, traffic=carriage, evictions=cause)

    def _traffic_lines(self, top: Header, end_s: int) -> list[Entry]:
        if top.traffic is None:
            return []
        self._carried = self._carried or Carried(top.types, top.traffic)
        return self._carried.lines(self.account.entries, top.traffic.rates, end_s)

    def ledger(self) -> Ledger:
        """The ledger so far, which `accounts.rebill` can check."""
        top, entries = self._top(), self.account.entries
        return Ledger(top, (*entries, *self._traffic_lines(top, self.last_s)))
