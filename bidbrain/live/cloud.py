"""What a market of instances offers to whoever drives it; the replayed one and EC2 speak the same.

Everything is level-triggered and may be asked again: `acquire` with a token that was used gives the same instances,
`release` of what is gone is no error, `held` and `ended` say how things are. So a service that died at any
point only has to ask.
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
    """`instances` of one market; instances of a price market live and die together.

    token: makes the order unique for ever (ASCII, at most 64). bid: the highest price (micro-dollars per machine
    hour) that may be paid; of on-demand instances the price itself.
    """

    token: str
    market: Market
    vcpus: int
    vcpus_per_machine: int
    bid: int

    @property
    def instances(self) -> int:
        """Whole instances; a share of one is one."""
        return -(-self.vcpus // self.vcpus_per_machine)

    @property
    def on_demand(self) -> bool:
        return self.market.zone == ON_DEMAND_ZONE


@dataclass(frozen=True)
class Instance:
    """An instance that is ours. launched_s: when its bill began, Unix time (market time in a replay)."""

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
    """What a notice announces."""

    TERMINATE = "terminate"  # the market takes the instance at the deadline
    REBALANCE = "rebalance"  # the instance is at risk: a hint to buy ahead, nothing more
    HOUR_END = "hour_end"  # we give the instance back at the deadline, the end of its hour


@dataclass(frozen=True)
class Notice:
    """A warning, the same from every source (queue, metadata service, replay); the second copy is no news.

    deadline_s: absolute, Unix time (market time in a replay).
    """

    notice_id: str
    instance_id: str
    alert: Alert
    deadline_s: int


@dataclass(frozen=True)
class Quotes:
    """The market now. `pulse` changes whenever a request might fare otherwise than before.

    full: markets that refused a short while ago; nothing more is asked of them for now.
    """

    offers: tuple[Offer, ...]
    pulse: str
    full: frozenset[Market] = frozenset()


class Cloud(Protocol):
    """A market for one job. Raises the errors below; each says one sentence."""

    @property
    def together(self) -> bool:
        """Whether the instances of an order live and die together (bids on prices) or each on its own (capacity)."""
        ...

    def quotes(self, now_s: int) -> Quotes:
        """Offers with a price."""
        ...

    def price(self, market: Market, at_s: int) -> int:
        """Micro-dollars per machine hour at an instant that is not in the future."""
        ...

    def acquire(self, order: Order) -> tuple[Instance, ...]:
        """Buy; idempotent by token. Fewer instances than ordered is an answer too. RefusedError: none."""
        ...

    def release(self, instance_ids: tuple[str, ...]) -> None:
        """Give back; idempotent."""
        ...

    def held(self) -> tuple[Instance, ...]:
        """All instances of this job that exist (not those that have ended), whoever bought them."""
        ...

    def ended(self, instance_ids: tuple[str, ...]) -> tuple[EndedInstance, ...]:
        """Those of these instances that have ended."""
        ...

    def notices(self) -> tuple[Notice, ...]:
        """Warnings that are open now, or that have arrived since the last time; repeats are allowed."""
        ...


class CloudError(RuntimeError):
    """What a market answered instead, in one sentence."""


class RefusedError(CloudError):
    """The order was answered: no instances (price above the bid, no capacity, unknown type)."""


class CapacityError(RefusedError):
    """No capacity in this market now."""


class QuotaError(RefusedError):
    """The account may not hold so many."""


class UnknownOutcomeError(CloudError):
    """Throttled, timed out or failed inside: ask again with the same token."""


class CredentialsError(CloudError):
    """No credentials, or they may not do this: nothing can go on."""


class MarketClosedError(CloudError):
    """The market has ended (a replayed history is over)."""
