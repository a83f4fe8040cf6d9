"""The cost of a stack's machines so far, and the rest of its limits. Pure: prices and times are arguments.

The driver of a job has a finer account (`bidbrain.accounts`) with guards of its own, and stops before any of these
limits is reached. This sum is kept by the buyer, from its own purchases and AWS' prices, so that code beside the driver
cannot change it. It counts by the second, 60 s at least, each instance hour at the price of its beginning, and nothing
for a machine that AWS takes back within its first hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict

from bidbrain.aws.limits import Limits
from bidbrain.billing import Ending
from bidbrain.billing.per_second import MINIMUM_S
from bidbrain.history.prices import Market
from bidbrain.live.cloud import EndedInstance, Instance, Order
from bidbrain.money import HOUR_S, show_usd


class PlacedOrder(BaseModel):
    """An order that was given to EC2. price: of one machine then, micro-dollars per hour. instances: the answer."""

    model_config = ConfigDict(extra="forbid")

    job: str
    order: Order
    price: int
    is_answered: bool = False
    instances: tuple[Instance, ...] = ()


class PaidInstance(BaseModel):
    """A machine that costs money. price: the newest one known, micro-dollars per hour; hour_price: of its running hour
    (None: an earlier version did not say it, the newest). paid: micro-dollar seconds per hour, 3600 of which are a
    micro-dollar."""

    model_config = ConfigDict(extra="forbid")

    job: str
    market: Market
    price: int
    since_s: int
    paid: int = 0
    hour_price: int | None = None

    def pay(self, from_s: int, until_s: int) -> None:
        """Pay for the seconds between two instants: an hour that begins there costs what is known by then."""
        while from_s < until_s:
            used_s = (from_s - self.since_s) % HOUR_S
            if not used_s or self.hour_price is None:
                self.hour_price = self.price
            end_s = min(from_s + HOUR_S - used_s, until_s)
            self.paid += self.hour_price * (end_s - from_s)
            from_s = end_s


class OverInstance(BaseModel):
    """A machine that was seen to end."""

    model_config = ConfigDict(extra="forbid")

    job: str
    end: EndedInstance


class Expenses(BaseModel):
    """The orders and machines that there are, and what was paid for those that have ended, by job.

    at_s: until when machines are paid for, Unix time. closed: of jobs, in micro-dollar seconds per hour. over: the
    machines of the newest job that have ended. EC2 lists those for an hour, and a job may be away for longer.
    """

    model_config = ConfigDict(extra="forbid")

    at_s: int
    closed: dict[str, int] = {}
    orders: dict[str, PlacedOrder] = {}
    held: dict[str, PaidInstance] = {}
    over: dict[str, OverInstance] = {}

    def advance(self, now_s: int, prices: Mapping[Market, int]) -> None:
        """Pay for every machine until now, at the prices that held, and take note of those of now."""
        for each in self.held.values():
            each.pay(max(self.at_s, each.since_s), now_s)
            each.price = prices.get(each.market, each.price)
        self.at_s = max(self.at_s, now_s)

    def spent(self, job: str | None = None) -> int:
        """Micro-dollars for a job's machines so far; None: for those of all jobs."""
        paid = sum(amount for name, amount in self.closed.items() if job in (None, name))
        paid += sum(each.paid for each in self.held.values() if job in (None, each.job))
        return paid // HOUR_S

    def left(self, job: str, limits: Limits) -> int | None:
        """The micro-dollars that other jobs have left of the stack's budget for this one; None: no limit."""
        if limits.stack_micro_usd is None:
            return None
        return max(0, limits.stack_micro_usd - (self.spent() - self.spent(job)))

    def sold(self, job: str, order: Order) -> tuple[Instance, ...]:
        """The machines that the same order was answered with; none: it has no answer yet, or was answered with none."""
        known = self.orders.get(order.token)
        return known.instances if known is not None and (known.job, known.order) == (job, order) else ()

    def refusal(self, job: str, order: Order, price: int, limits: Limits) -> str:
        """Why an order may not be placed; empty: it may. price: of one machine now.

        An order without an answer is counted already, so it may be placed again. One that was answered is not counted
        any more: EC2 may not have heard of its token, and would sell it now.
        """
        known = self.orders.get(order.token)
        if known is not None:
            if (known.job, known.order) != (job, order):
                return f"{order.token} was another order before"
            return f"{order.token} was answered before" if known.is_answered else ""
        unanswered = [each for each in self.orders.values() if not each.is_answered]
        there = len(self.held) + sum(each.order.instances for each in unanswered)
        if there + order.instances > limits.machines:
            asked = f"{there} machines are there and {order.instances} more asked for"
            return f"{asked}, the stack's limit is {limits.machines}"
        hour = price * order.instances + sum(each.price for each in self.held.values())
        hour += sum(each.price * each.order.instances for each in unanswered)
        for what, spent, most in self._sums(job, limits):
            if spent + hour > most:
                return (
                    f"{what} has cost {show_usd(spent)} $, and {show_usd(hour)} $ more for an hour with it, "
                    f"the stack's limit is {show_usd(most)} $"
                )
        return ""

    def overdrawn(self, job: str, limits: Limits) -> str:
        """Why all machines must go now; empty: they may stay."""
        for what, spent, most in self._sums(job, limits):
            if spent > most:
                return f"{what} has cost {show_usd(spent)} $, the stack's limit is {show_usd(most)} $"
        return ""

    def _sums(self, job: str, limits: Limits) -> list[tuple[str, int, int]]:
        """(purpose, micro-dollars so far, the limit of them)."""
        sums = [(f"job {job}", self.spent(job), limits.job_micro_usd)]
        if limits.stack_micro_usd is not None:
            sums.append(("the stack with all its jobs", self.spent(), limits.stack_micro_usd))
        return sums

    def placed(self, job: str, order: Order, price: int) -> None:
        """An order is about to be given to EC2."""
        self.orders.setdefault(order.token, PlacedOrder(job=job, order=order, price=price))

    def answered(self, token: str, instances: Iterable[Instance]) -> None:
        """EC2 has answered an order: with these machines, or with none."""
        placed = self.orders[token]
        placed.instances = tuple(instances)
        self.found(placed.job, placed.instances, placed.price)
        placed.is_answered = True

    def found(self, job: str, instances: Iterable[Instance], price: int) -> None:
        """Machines of a job that are there, whether or not an order of it is known."""
        for each in instances:
            since_s = max(each.launched_s, 0)
            self.held.setdefault(
                each.instance_id, PaidInstance(job=job, market=each.market, price=price, since_s=since_s)
            )

    def ended(self, gone: Iterable[EndedInstance]) -> None:
        """Machines have ended: the last that is paid for them. Others are left out."""
        for each in gone:
            machine = self.held.pop(each.instance_id, None)
            if machine is None:
                continue
            used_s, paid_s = max(0, each.at_s - machine.since_s), max(self.at_s, machine.since_s)
            machine.pay(paid_s, each.at_s)
            price = machine.price if machine.hour_price is None else machine.hour_price
            paid = max(machine.paid - price * max(0, paid_s - each.at_s), price * MINIMUM_S)
            if each.ending is Ending.EVICTED and used_s < HOUR_S:
                paid = 0
            self.closed[machine.job] = self.closed.get(machine.job, 0) + paid
            self.over[each.instance_id] = OverInstance(job=machine.job, end=each)

    def known_ends(self, instance_ids: Iterable[str]) -> tuple[EndedInstance, ...]:
        """The ends among these that were seen before."""
        return tuple(self.over[each].end for each in instance_ids if each in self.over)

    @property
    def jobs(self) -> set[str]:
        """The jobs whose machines or orders are there."""
        return {each.job for each in self.held.values()} | {each.job for each in self.orders.values()}

    def forget_ends(self, newest: str) -> None:
        """Forget how the machines of other jobs than the newest ended: no driver asks for them any more."""
        self.over = {name: each for name, each in self.over.items() if each.job == newest}

    def forget_orders(self, job: str) -> None:
        """A job has ended and its machines with it: none of its orders is asked about again."""
        self.orders = {token: each for token, each in self.orders.items() if each.job != job}
