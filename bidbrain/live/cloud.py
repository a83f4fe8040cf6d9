"""The protocol of a market for one job: orders, instances, notices, quotes. The replayed market and EC2 implement it.

Every call may be repeated: `acquire` with a token that was used returns the same instances, `release` of an instance
that has ended is no error, `held` and `ended` report the present state. So a service may die at any point, and its
successor just asks again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from bidbrain.billing import Ending
from bidbrain.history.prices import Market
from bidbrain.policy.base import Offer
from bidbrain.setting import ON_DEMAND_ZONE


@dataclass(frozen=True)
class Order:
    """An order for instances of one market. Raises ValueError for one that asks for nothing.

    token: makes the order unique for ever (ASCII, at most 64 characters). bid: the highest price that may be paid
    (micro-dollars per instance hour); for on-demand instances the price itself.
    """

    token: str
    market: Market
    vcpus: int
    vcpus_per_machine: int
    bid: int

    def __post_init__(self) -> None:
        for name in ("vcpus", "vcpus_per_machine", "bid"):
            if (found := getattr(self, name)) <= 0:
                raise ValueError(f"{name}: found {found}, expected more than 0")

    @property
    def instances(self) -> int:
        """The number of instances, rounded up."""
        return -(-self.vcpus // self.vcpus_per_machine)

    @property
    def on_demand(self) -> bool:
        return self.market.zone == ON_DEMAND_ZONE


@dataclass(frozen=True)
class Instance:
    """An instance of this job. launched_s: when its bill began, Unix time (market time in a replay)."""

    instance_id: str
    token: str
    market: Market
    launched_s: int


@dataclass(frozen=True)
class EndedInstance:
    """When and how an instance ended: EVICTED by the market, or TERMINATED by us or by itself."""

    instance_id: str
    at_s: int
    ending: Ending


class Alert(StrEnum):
    """The kind of event that a notice announces."""

    TERMINATE = "terminate"  # the market takes the instance at the deadline
    REBALANCE = "rebalance"  # the instance is at risk: a hint to buy ahead, nothing more
    HOUR_END = "hour_end"  # we give the instance back at the deadline, the end of its hour


@dataclass(frozen=True)
class InstanceNotice:
    """A preemption notice, the same from every source (queue, metadata service, replay). Repeats change nothing.

    deadline_s: absolute, Unix time (market time in a replay).
    """

    notice_id: str
    instance_id: str
    alert: Alert
    deadline_s: int


def notice_of(alert: Alert, instance_id: str, deadline_s: int) -> InstanceNotice:
    """The notice of one kind for an instance. Notices of the same kind from several sources get the same id."""
    return InstanceNotice(f"{alert}-{instance_id}", instance_id, alert, deadline_s)


class NoticeSource(Protocol):
    """A source of notices beside a cloud's own calls."""

    def notices(self) -> tuple[InstanceNotice, ...]:
        """See `Cloud.notices`."""
        ...


@dataclass(frozen=True)
class Quotes:
    """The market now. pulse: changes whenever a request might be answered differently than before.

    full: markets that refused a short while ago; nothing is ordered there for now. troubles: what is wrong with the
    market, a sentence each, as long as it lasts.
    """

    offers: tuple[Offer, ...]
    pulse: str
    full: frozenset[Market] = frozenset()
    troubles: tuple[str, ...] = ()


class Cloud(Protocol):
    """A market for one job. Calls raise the errors below, each with a message of one sentence."""

    @property
    def together(self) -> bool:
        """True if an order's instances are evicted together (bids on prices), False if each on its own (capacity)."""
        ...

    def quotes(self, now_s: int) -> Quotes:
        """Offers with a price."""
        ...

    def price(self, market: Market, at_s: int) -> int:
        """Micro-dollars per machine hour at an instant that is not in the future."""
        ...

    def acquire(self, order: Order) -> tuple[Instance, ...]:
        """Buy; idempotent by token. May return fewer instances than ordered; raises RefusedError for none."""
        ...

    def release(self, instance_ids: tuple[str, ...]) -> None:
        """Give back; idempotent. Once the job holds nothing, the cloud also ends what runs for it without an order."""
        ...

    def held(self) -> tuple[Instance, ...]:
        """All instances of this job that have not ended, also those that another service bought."""
        ...

    def ended(self, instance_ids: tuple[str, ...]) -> tuple[EndedInstance, ...]:
        """The instances among these that have ended."""
        ...

    def notices(self) -> tuple[InstanceNotice, ...]:
        """Notices that are open now or have arrived since the last call; repeats are allowed."""
        ...


class CloudError(RuntimeError):
    """A market could not answer as asked; the message is one sentence."""


class RefusedError(CloudError):
    """The market answered the order with no instances (price above the bid, no capacity, unknown type)."""


class KnownTokenError(RefusedError):
    """The market knows the order's token from a different order, for which it may have sold instances."""


class CapacityError(RefusedError):
    """No capacity in this market now."""


class QuotaError(RefusedError):
    """The account may not hold so many instances."""


class UnknownOutcomeError(CloudError):
    """The call was throttled, timed out or failed at the provider: ask again with the same token."""


class CredentialsError(CloudError):
    """There are no credentials, or they do not allow this call."""


class MarketClosedError(CloudError):
    """The market has ended (a replayed history is over)."""
