"""A recorded market replayed for a live job: recorded prices or capacity, instances from a launcher.

The simulator's exchanges (`simulate.exchange`) decide: a request is granted at or below the bid, or while there is
room; instances are evicted at the first price above the bid, or when the capacity falls. An eviction is announced
`notice_s` of market time before, or, for a given share of orders, not at all; then the launcher kills. A given clock
tells the time: market time at a chosen speed, or a test's.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bidbrain.accounts.account import Allocation
from bidbrain.billing import Ending, InstanceHour
from bidbrain.history.prices import NEVER_S, Market
from bidbrain.instants import show_instant
from bidbrain.live.cloud import (
    Alert,
    CapacityError,
    EndedInstance,
    Instance,
    InstanceNotice,
    MarketClosedError,
    Order,
    Quotes,
    RefusedError,
)
from bidbrain.live.replay_book import Over, ReplayBook, Sold
from bidbrain.policy.base import Phase
from bidbrain.setting import ON_DEMAND_ZONE, Setting
from bidbrain.simulate.exchange import exchange_of


class Launcher(Protocol):
    """Starts and ends real instances. An instance is billed from its grant, however long it takes to start."""

    def start(self, instance: Instance) -> None: ...

    def kill(self, instance_id: str) -> None:
        """End an instance at once, with everything on it; no error if it has ended."""
        ...


class InstantLauncher:
    """Instances that exist on paper only, for tests and dry runs."""

    def __init__(self) -> None:
        self.running: set[str] = set()

    def start(self, instance: Instance) -> None:
        self.running.add(instance.instance_id)

    def kill(self, instance_id: str) -> None:
        self.running.discard(instance_id)


@dataclass(frozen=True)
class Warnings:
    """How evictions are announced: seconds before, and the share of orders that get no notice (drawn by seed)."""

    notice_s: int = 120
    silent_share: float = 0.0
    seed: int = 0

    def announced(self, token: str) -> bool:
        """True if the instances of an order get a notice; equal seeds give equal answers."""
        digest = hashlib.sha256(f"{self.seed}:{token}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 >= self.silent_share


class MarketClock:
    """Market time: `start_s` when made, `speed` market seconds per second since. `wait` returns every `poll_s`."""

    trouble = ""

    def __init__(
        self,
        start_s: int,
        speed: float,
        poll_s: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        assert speed > 0
        self._start_s, self._speed, self._poll_s = start_s, speed, poll_s
        self._clock, self._sleep = clock, sleep
        self._zero = clock()

    def now_s(self) -> int:
        return self._start_s + math.floor((self._clock() - self._zero) * self._speed)

    def wait(self, until_s: int, market: bool) -> None:
        left = (until_s - self._start_s) / self._speed - (self._clock() - self._zero)
        self._sleep(min(self._poll_s, max(0.0, left)))


@dataclass
class _Lot:
    """The instances of an order. allocation: as an exchange sees them; its number is the order's."""

    order: Order
    allocation: Allocation
    instances: tuple[Instance, ...]
    live: set[str] = field(default_factory=set)


class Replay:
    """A market for one job. Like a real one, it outlives the service that drives it; with a book, the process too."""

    together = True

    def __init__(
        self,
        setting: Setting,
        now_s: Callable[[], int],
        launcher: Launcher,
        warnings: Warnings | None = None,
        book: ReplayBook | None = None,
    ) -> None:
        """book: the purchases and ends so far; instances that it still holds are started again."""
        self._setting = setting
        self._exchange = exchange_of(setting)
        self._now_s = now_s
        self._launcher = launcher
        self._warnings = warnings or Warnings()
        self._lots: dict[str, _Lot] = {}  # all that were sold, by order
        self._open: dict[str, _Lot] = {}  # those of which instances live, in order of acquisition
        self._ended: dict[str, EndedInstance] = {}
        self._played_s = now_s()
        self.purchases: list[str] = []  # tokens, once per purchase
        self._book = book
        if book is not None and book.records:
            self._go_on(book)

    def _go_on(self, book: ReplayBook) -> None:
        """Restore the purchases of a book, evict what the market has taken since, and start the other instances."""
        for entry in book.records:
            match entry:
                case Sold(at_s, order):
                    self._sell(order, at_s)
                case Over(at_s, instances, ending):
                    self._note_end(instances, at_s, ending)
            self._played_s = entry.at_s
        for instance in self.held():
            self._launcher.start(instance)

    @property
    def end_s(self) -> int:
        """The end of the history, in market time."""
        return self._setting.history.end_s

    def quotes(self, now_s: int) -> Quotes:
        self._play()
        if now_s >= self.end_s:
            raise MarketClosedError(
                f"the replayed history ends at {show_instant(self.end_s)}, before the job does: "
                "start earlier, or take a longer history or a shorter job"
            )
        return Quotes(self._exchange.offers(now_s), str(self._changes_until(now_s)))

    def _changes_until(self, now_s: int) -> int:
        """The pulse of `Quotes`: an instant that changes exactly when the market does."""
        return self._exchange.next_change_s(now_s)

    def next_change_s(self, now_s: int) -> int:
        """The next change of any price or capacity."""
        return self._exchange.next_change_s(now_s)

    def next_eviction_s(self, now_s: int) -> int:
        """The first instant after now at which instances of ours may be evicted."""
        return self._exchange.next_eviction_s(self._spot(), now_s)

    def price(self, market: Market, at_s: int) -> int:
        if market.zone == ON_DEMAND_ZONE:
            return self._setting.reliable.on_demand
        return self._exchange.price(market, at_s)

    def acquire(self, order: Order) -> tuple[Instance, ...]:
        now_s = self._play()
        if order.token in self._lots:
            return self._lots[order.token].instances
        if now_s >= self.end_s:
            self.quotes(now_s)
        if not order.on_demand and not self._exchange.grants(
            self._allocation(order, now_s), self._spot(), now_s
        ):
            if self._setting.pools:
                raise CapacityError(f"{order.market} has no room for {order.instances} instances")
            price = self._exchange.price(order.market, now_s)
            raise RefusedError(f"the price of {order.market}, {price / 1e6:g} $/h, is above the bid")
        if self._book is not None:
            self._book.append(Sold(now_s, order))
        instances = self._sell(order, now_s)
        for instance in instances:
            self._launcher.start(instance)
        return instances

    def _sell(self, order: Order, at_s: int) -> tuple[Instance, ...]:
        instances = tuple(
            Instance(f"{order.token}-{i}", order.token, order.market, at_s) for i in range(order.instances)
        )
        live = {instance.instance_id for instance in instances}
        lot = _Lot(order, self._allocation(order, at_s), instances, live)
        self._lots[order.token] = self._open[order.token] = lot
        self.purchases.append(order.token)
        return instances

    def _allocation(self, order: Order, now_s: int) -> Allocation:
        hour = InstanceHour(0, order.bid, order.vcpus, order.vcpus_per_machine)
        what = (len(self._lots), order.market, order.vcpus, order.vcpus_per_machine, order.bid)
        return Allocation(*what, Phase.HELD, now_s, hour, now_s, order.on_demand)

    def release(self, instance_ids: tuple[str, ...]) -> None:
        now_s = self._play()
        self._end(instance_ids, now_s, Ending.TERMINATED)

    def held(self) -> tuple[Instance, ...]:
        self._play()
        return tuple(
            instance
            for lot in self._open.values()
            for instance in lot.instances
            if instance.instance_id in lot.live
        )

    def ended(self, instance_ids: tuple[str, ...]) -> tuple[EndedInstance, ...]:
        self._play()
        return tuple(self._ended[each] for each in instance_ids if each in self._ended)

    def notices(self) -> tuple[InstanceNotice, ...]:
        """Open notices. With pools: of the instances that would be evicted now; a later release may spare them."""
        self._play()
        now_s = self._now_s()
        spot = self._spot()
        found: list[InstanceNotice] = []
        at_s = self._exchange.next_eviction_s(spot, now_s)
        while at_s <= min(now_s + self._warnings.notice_s, NEVER_S - 1):
            victims = self._exchange.taken_back(spot, at_s)
            for lot in self._open.values():
                if lot.allocation in victims and self._warnings.announced(lot.order.token):
                    found += [
                        InstanceNotice(f"replay-{instance_id}", instance_id, Alert.TERMINATE, at_s)
                        for instance_id in sorted(lot.live)
                    ]
            spot = [each for each in spot if each not in victims]
            at_s = self._exchange.next_eviction_s(spot, at_s)
        return tuple(found)

    def _spot(self) -> list[Allocation]:
        """Spot allocations that the market may evict, in order of acquisition."""
        return [lot.allocation for lot in self._open.values() if not lot.order.on_demand]

    def _play(self) -> int:
        """Evict the instances that the market has taken by now. Return the present time."""
        now_s = self._now_s()
        while (at_s := self._exchange.next_eviction_s(self._spot(), self._played_s)) <= now_s:
            victims = self._exchange.taken_back(self._spot(), at_s)
            lots = [lot for lot in self._open.values() if lot.allocation in victims]
            self._end(
                tuple(instance_id for lot in lots for instance_id in sorted(lot.live)), at_s, Ending.EVICTED
            )
            self._played_s = at_s
        self._played_s = now_s
        return now_s

    def _end(self, instance_ids: tuple[str, ...], at_s: int, ending: Ending) -> None:
        live = {instance_id for lot in self._open.values() for instance_id in lot.live}
        over = tuple(instance_id for instance_id in instance_ids if instance_id in live)
        if not over:
            return
        if self._book is not None:
            self._book.append(Over(at_s, over, ending))
        self._note_end(over, at_s, ending)
        for instance_id in over:
            self._launcher.kill(instance_id)

    def _note_end(self, instance_ids: tuple[str, ...], at_s: int, ending: Ending) -> None:
        for token, lot in list(self._open.items()):
            lot.live.difference_update(instance_ids)
            if not lot.live:
                del self._open[token]
        self._ended |= {each: EndedInstance(each, at_s, ending) for each in instance_ids}
