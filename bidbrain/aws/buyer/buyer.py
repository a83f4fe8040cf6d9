"""Buys for one job at a time within the limits of its stack, and ends the instances of a job that does not come back.

All methods are called under one lock (`server`). Purchases are on disk before they are made, so a buyer that dies in
between goes on with the same sums; what it did not hear of is found by the job's tag.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from bidbrain.aws.buyer.expenses import Expenses
from bidbrain.aws.buyer.messages import (
    Answer,
    AskEnded,
    AskHeld,
    AskNotices,
    AskPrice,
    AskPurchase,
    AskQuotes,
    AskRelease,
    EndedAre,
    EndOthers,
    InstancesAre,
    JobOpened,
    LeftBehind,
    NoticesAre,
    OpenJob,
    OthersEnded,
    PriceIs,
    QuotesAre,
    ReleaseDone,
    Request,
)
from bidbrain.aws.clients import Clients
from bidbrain.aws.ec2 import UNSEEN_S, Ec2
from bidbrain.aws.limits import Catalog, Limits, LimitsError
from bidbrain.aws.objects import BucketObjects
from bidbrain.aws.regions import Ec2Regions, market_of
from bidbrain.aws.stack.attach import Attached, left_behind
from bidbrain.aws.stack.names import LIMITS_OBJECT, Names
from bidbrain.aws.tagged import terminate
from bidbrain.history.locations import location_of
from bidbrain.history.prices import Market
from bidbrain.live.cloud import (
    CloudError,
    EndedInstance,
    Instance,
    Order,
    RefusedError,
    UnknownOutcomeError,
)
from bidbrain.live.unix_clock import UnixClock

T = TypeVar("T")
JOB, TOKEN = re.compile("[!-~]{1,128}"), re.compile("[!-~]{1,64}")  # EC2 takes no more of a token
MACHINE = re.compile("[!-~]{1,64}")  # an id of EC2's has 19 characters


@dataclass(frozen=True)
class BuyerPlace:
    """Whose stack it is, and where the buyer keeps its files. host: this head's address inside."""

    names: Names
    host: str
    folder: Path
    orphan_after_s: int


class _Job:
    """A job's market since `began_s`. driver: the connection that drives it; None since `left_s`. unswept: regions
    that may still have machines of earlier jobs which nobody knows of (None: home). unreported: machines of earlier
    jobs that were ended, with their job, which the driver does not know of yet."""

    def __init__(
        self,
        name: str,
        attached: Attached,
        cloud: Ec2 | Ec2Regions,
        limits: Limits,
        catalog: Catalog,
        driver: int | None,
        began_s: int = 0,
    ) -> None:
        self.name, self.attached, self.cloud = name, attached, cloud
        self.limits, self.catalog = limits, catalog
        self.driver = driver
        self.began_s, self.left_s = began_s, 0
        self.unswept: set[str | None] = {None, *attached.elsewhere}
        self.unreported: dict[str, str] = {}

    def is_silent(self, market: Market) -> bool:
        """Whether the region of a market does not answer: a call there would hold up everything else."""
        place = location_of(market.zone)
        return place is not None and place.region in self.cloud.silent


class Buyer:
    """See the module. say: for the log of the service; it holds no secret."""

    def __init__(
        self, place: BuyerPlace, aws: Clients, clock: UnixClock, say: Callable[[str], None] | None = None
    ) -> None:
        self._place, self._aws, self._clock = place, aws, clock
        self._say = say or (lambda sentence: print(sentence, file=sys.stderr, flush=True))
        self._file = place.folder / "expenses.json"
        place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._expenses = self._read()
        self._job: _Job | None = None
        self._failures: Counter[str] = Counter()  # in a row, by what failed
        self._began_s = clock.now_s()

    def _read(self) -> Expenses:
        try:
            return Expenses.model_validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return Expenses(at_s=self._clock.now_s())
        except ValidationError as error:
            raise LimitsError(f"{self._file}: {error.errors()[0]['msg']}") from None

    def _save(self) -> None:
        """On disk as a whole before anything costs money."""
        written = self._file.with_suffix(".part")
        with written.open("w") as file:
            file.write(self._expenses.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._file)

    # -- requests -----------------------------------------------------------------------------------------------

    def open(self, request: OpenJob, driver: int) -> JobOpened:
        """Have a job drive the market by the connection `driver`. Raises CloudError."""
        stack = self._place.names.stack
        if request.stack != stack:
            raise RefusedError(
                f"market.name: found {request.stack}, expected {stack}: this is the head of that stack"
            )
        if not JOB.fullmatch(request.job):
            raise RefusedError(
                f"found a job's name of {len(request.job)} characters, expected up to 128, no spaces"
            )
        running = self._job
        if running is not None and running.driver is not None and running.name != request.job:
            raise RefusedError(f"the stack {stack} runs job {running.name}, expected no second one")
        self._job = self._attached(request.job, driver)
        if running is not None:  # this driver may have been connected before, without having asked
            self._job.unreported.update(running.unreported)
        for other in self._expenses.jobs - {request.job}:
            self._expenses.forget_orders(other)  # what they bought is found by its tag (`_end_others`)
        self._expenses.forget_ends(request.job)
        catalog = self._job.catalog
        vcpus = (*(each.vcpus for each in catalog.listings), catalog.reliable.vcpus_per_machine)
        markets, limits = (*catalog.markets, catalog.reliable.market), self._job.limits
        left = self._expenses.left(request.job, limits)
        return JobOpened(markets, vcpus, limits.machines, limits.job_micro_usd, left)

    def _attached(self, name: str, driver: int | None) -> _Job:
        """A job on its market. Raises CloudError."""
        names = self._place.names
        now_s = self._clock.now_s()
        objects = BucketObjects(self._aws.client("s3"), names.bucket, names.prefix)
        try:
            limits = Limits.parsed(objects.get(LIMITS_OBJECT).decode(), f"s3://{names.bucket}/{names.limits}")
            catalog = limits.catalog(now_s)
        except LimitsError as error:
            raise CloudError(str(error)) from None
        attached, cloud = market_of(
            limits.site, name, catalog, self._clock.now_s, self._aws, self._place.folder
        )
        return _Job(name, attached, cloud, limits, catalog, driver, now_s)

    @property
    def driven(self) -> str:
        """The job that a connection drives now; empty: none."""
        return "" if self._job is None or self._job.driver is None else self._job.name

    def left(self, driver: int) -> None:
        """A connection has ended: its job may come back for a while."""
        if self._job is not None and self._job.driver == driver:
            self._job.driver, self._job.left_s = None, self._clock.now_s()

    def answer(self, request: Request, driver: int) -> Answer:
        """Carry out a request of the job's driver. Raises CloudError."""
        job = self._job
        if job is None or job.driver != driver:
            raise RefusedError("this connection drives no job of the stack, expected `open` first")
        match request:
            case EndOthers():
                return OthersEnded(self._end_others(job))
            case AskQuotes():
                quotes = job.cloud.quotes(self._clock.now_s())
                full = tuple(sorted(quotes.full, key=str))
                return QuotesAre(quotes.offers, quotes.pulse, full, quotes.troubles)
            case AskPrice(market, at_s):
                return PriceIs(job.cloud.price(self._offered(job, market), at_s))
            case AskPurchase(order):
                return InstancesAre(self._buy(job, order))
            case AskRelease(instance_ids):
                self._release(job, instance_ids)
                return ReleaseDone()
            case AskHeld():
                return InstancesAre(self._held(job))
            case AskEnded(instance_ids):
                return EndedAre(self._ended(job, instance_ids))
            case AskNotices():
                return NoticesAre(job.cloud.notices())
        raise AssertionError(request)

    def _end_others(self, job: _Job) -> tuple[LeftBehind, ...]:
        """At home and in the other regions; one that does not answer is asked again by `_end_earlier`."""
        self._end_others_in(job, None)
        for region in job.attached.elsewhere:
            try:
                self._end_others_in(job, region)
            except CloudError as error:
                self._say(f"what earlier jobs left running in {region} could not be ended: {error}")
        ended, job.unreported = job.unreported, {}
        return tuple(LeftBehind(machine, earlier) for machine, earlier in ended.items())

    def _end_others_in(self, job: _Job, region: str | None) -> None:
        left = left_behind(job.attached, self._place.names.stack, self._place.host, region)
        # First: where the answer is lost the machines end all the same, and are not found here again.
        job.unreported.update({each.machine_id: each.job for each in left})
        terminate(job.attached.ec2 if region is None else job.attached.elsewhere[region], left)
        for each in left:
            self._say(f"ended {each.machine_id}, which job {each.job} left running")
        if self._clock.now_s() - job.began_s >= UNSEEN_S:  # by now EC2 lists all that was bought before
            job.unswept.discard(region)

    def _offered(self, job: _Job, market: Market) -> Market:
        if job.catalog.vcpus(market) is None:
            raise RefusedError(f"{market} is not among what the stack may buy; `proteus aws up` sets that")
        return market

    def _buy(self, job: _Job, order: Order) -> tuple[Instance, ...]:
        if not TOKEN.fullmatch(order.token):  # it is kept, so long ones would fill this process's memory
            raise RefusedError(
                f"found a token of {len(order.token)} characters, expected up to 64, no spaces"
            )
        market, now_s = self._offered(job, order.market), self._clock.now_s()
        if (size := job.catalog.vcpus(market)) != order.vcpus_per_machine:
            raise RefusedError(
                f"{market}: found {order.vcpus_per_machine} vCPUs per machine, expected {size}"
            )
        if sold := self._expenses.sold(job.name, order):
            return sold
        price = job.cloud.price(market, now_s)
        self._expenses.advance(now_s, {})
        if why := self._expenses.refusal(job.name, order, price, job.limits):
            self._say(f"refused {order.instances} x {order.market}: {why}")
            raise RefusedError(f"{order.market}: {why}")
        self._expenses.placed(job.name, order, price)
        self._save()
        instances: tuple[Instance, ...] = ()
        try:
            instances = job.cloud.acquire(order)
        except UnknownOutcomeError:
            raise  # it counts as bought until the same order is answered
        except RefusedError:
            self._expenses.answered(order.token, ())
            self._save()
            raise
        self._expenses.answered(order.token, instances)
        self._save()
        return instances

    def _held(self, job: _Job) -> tuple[Instance, ...]:
        """The job's machines; those of an order whose answer was lost are counted now."""
        instances = job.cloud.held()
        for each in instances:
            if each.instance_id not in self._expenses.held:
                self._expenses.found(job.name, (each,), self._price(job, each.market))
        return instances

    def _price(self, job: _Job, market: Market) -> int:
        """Of a machine that is there; of a market that the limits have left since, the on-demand price of another."""
        listing = job.catalog.by_market.get(market)
        if listing is None:
            return job.catalog.reliable.on_demand
        price = self._tried(f"the price of {market}", lambda: job.cloud.price(market, self._clock.now_s()))
        return listing.on_demand if price is None else price

    def _release(self, job: _Job, instance_ids: tuple[str, ...]) -> None:
        mine = {name for name, each in self._expenses.held.items() if each.job == job.name}
        if not set(instance_ids) <= mine:
            mine |= {each.instance_id for each in self._held(job)}
        given_back = tuple(each for each in instance_ids if each in mine)
        job.cloud.release(given_back)
        self._tried("listing ended machines", lambda: self._ended(job, given_back))

    def _ended(self, job: _Job, instance_ids: tuple[str, ...]) -> tuple[EndedInstance, ...]:
        """The instances that have ended, which make room for others."""
        instance_ids = tuple(each for each in instance_ids if MACHINE.fullmatch(each))
        known = self._expenses.known_ends(instance_ids)
        over = {each.instance_id for each in known}
        ended = job.cloud.ended(tuple(each for each in instance_ids if each not in over))
        self._expenses.ended(ended)
        return (*known, *ended)

    # -- from time to time --------------------------------------------------------------------------------------

    def look(self) -> None:
        """Pay for what there is; end what earlier jobs left, and all machines past a limit or without a driver.

        The buyer reports a list or a price that AWS does not give, and goes on: without prices machines cost as before.
        Raises CloudError where machines could not be ended, or where there are no limits.
        """
        now_s, expenses = self._clock.now_s(), self._expenses
        if self._job is None:
            if not expenses.jobs:
                return
            self._job = self._attached(max(expenses.jobs), None)  # it was there before this process
            self._job.left_s = self._began_s
        job = self._job
        is_listed = self._tried("listing the machines", lambda: self._held(job)) is not None
        quotes = self._tried("asking for prices", lambda: job.cloud.quotes(now_s))
        expenses.advance(now_s, {offer.market: offer.price for offer in quotes.offers} if quotes else {})
        self._tried("listing ended machines", lambda: self._ended(job, tuple(expenses.held)))
        if job.driver is not None:
            self._end_earlier(job)
        try:
            self._end_over(job, now_s, is_listed=is_listed)
        finally:
            self._save()

    def _tried(self, what: str, call: Callable[[], T]) -> T | None:
        """The answer of a call; None, after a message, if it failed: the limits then hold by the last answers."""
        try:
            answer = call()
        except (CloudError, OSError) as error:
            self._failures[what] += 1
            self._say(f"{what} failed, {self._failures[what]} times in a row: {error}")
            return None
        self._failures.pop(what, None)
        return answer

    def _end_earlier(self, job: _Job) -> None:
        """End machines of earlier jobs, whose watchdogs take this job's driver for their own: those that are known, and
        those that only AWS knows, until every region has listed them."""
        held = self._expenses.held.items()
        known = tuple(name for name, each in held if each.job != job.name and not job.is_silent(each.market))
        if known:
            self._tried("ending machines of earlier jobs", lambda: self._end_known(job, known))
        for region in sorted(job.unswept - set(job.cloud.silent), key=str):
            where = region or "the home region"
            self._tried(
                f"ending what earlier jobs left in {where}", partial(self._end_others_in, job, region)
            )

    def _end_known(self, job: _Job, machines: tuple[str, ...]) -> None:
        job.cloud.release(machines)
        stack, held = self._place.names.stack, self._expenses.held
        job.unreported.update({machine: f"{stack}/{held[machine].job}" for machine in machines})
        self._say(f"ends {', '.join(machines)} of an earlier job")

    def _end_over(self, job: _Job, now_s: int, *, is_listed: bool) -> None:
        """End everything where a limit is passed, or no driver came back. Raises CloudError."""
        expenses = self._expenses
        why = expenses.overdrawn(job.name, job.limits) if expenses.held else ""
        if job.driver is None and now_s - job.left_s >= self._place.orphan_after_s:
            why = f"no process has driven job {job.name} for {now_s - job.left_s} s"
            if is_listed and not expenses.held and not job.cloud.silent:
                expenses.forget_orders(job.name)
                self._job = None
        if why and expenses.held:
            self._say(f"ends {len(expenses.held)} machines: {why}")
            job.cloud.release(tuple(expenses.held))
