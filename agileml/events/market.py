"""The events of a run's market. `market_s` is market time in seconds, money is in dollars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agileml.events.terms import AllocationEnding


@dataclass(frozen=True)
class MarketOpened:
    """BidBrain begins to buy. `speed`: market seconds in a second; the price on demand is that of the job's size."""

    kind: ClassVar = "market_opened"
    market_s: int
    speed: float
    policy: str
    nominal_vcpus: Mapping[str, int]
    on_demand_usd_per_h: float


@dataclass(frozen=True)
class DecisionTaken:
    """The policy decided on these steps, from so many offers and these measured figures."""

    kind: ClassVar = "decision"
    market_s: int
    steps: tuple[str, ...]
    reason: str
    offers: int
    held_vcpus: int
    phi: float
    lambda_s: float
    sigma_s: float


@dataclass(frozen=True)
class InstancesBought:
    """The market granted these instances. `reliable`: on demand, without a bid."""

    kind: ClassVar = "market_grant"
    market_s: int
    market: str
    instances: tuple[str, ...]
    allocations: tuple[int, ...]
    price_usd_per_h: float
    bid_usd_per_h: float
    reliable: bool


@dataclass(frozen=True)
class PurchaseRefused:
    """The market granted nothing of an order."""

    kind: ClassVar = "market_refusal"
    market_s: int
    market: str
    bid_usd_per_h: float
    reliable: bool
    reason: str


@dataclass(frozen=True)
class StepPassed:
    """A guard or a full market forbade a step of the decision."""

    kind: ClassVar = "market_passed"
    market_s: int
    reason: str


@dataclass(frozen=True)
class InstanceNoticed:
    """The market says that it will take an instance at `deadline_s` (market time)."""

    kind: ClassVar = "market_notice"
    market_s: int
    instance: str
    deadline_s: int


@dataclass(frozen=True)
class InstanceAtRisk:
    """The market says that it may take an instance, `deadline_s` (market time) at the earliest."""

    kind: ClassVar = "market_risk"
    market_s: int
    instance: str
    deadline_s: int


@dataclass(frozen=True)
class AllocationEnded:
    """An allocation is over. `market`: "-" where it is not known."""

    kind: ClassVar = "market_end"
    market_s: int
    allocation: int
    ending: AllocationEnding
    market: str


@dataclass(frozen=True)
class StrayFound:
    """An instance with our tag belonged to no allocation and was given back."""

    kind: ClassVar = "market_stray"
    market_s: int
    instance: str


@dataclass(frozen=True)
class MarketDraining:
    """Nothing is bought from now on; the job keeps what it has done. `code`: what it will exit with."""

    kind: ClassVar = "market_draining"
    market_s: int
    reason: str
    code: int


@dataclass(frozen=True)
class MarketClosing:
    """The job is over: everything is given back. `code`: what it exits with."""

    kind: ClassVar = "market_closing"
    market_s: int
    reason: str
    code: int


@dataclass(frozen=True)
class Billed:
    """The market's bill if the job ended now."""

    kind: ClassVar = "spend"
    market_s: int
    usd: float
    held_vcpus: int


@dataclass(frozen=True)
class PricesChanged:
    """New prices per instance hour, by market."""

    kind: ClassVar = "prices"
    market_s: int
    usd_per_h: Mapping[str, float]


@dataclass(frozen=True)
class EstimatesChanged:
    """BidBrain's measurements until now have changed (None: not measured yet).

    phi: how well the job scales. lambda_s, sigma_s: market seconds that an eviction, and a planned change, cost.
    nu: vCPUs' worth of work of an instance, by its type. traffic_gb_per_h: what a machine sends and receives.
    """

    kind: ClassVar = "estimates"
    market_s: int
    phi: float | None
    lambda_s: float | None
    sigma_s: float | None
    nu: Mapping[str, float]
    traffic_gb_per_h: float | None = None


@dataclass(frozen=True)
class MarketLeftOpen:
    """Instances may be left that cost money, or there is no bill."""

    kind: ClassVar = "market_left_open"
    reason: str


MarketEvent = (
    MarketOpened | DecisionTaken | InstancesBought | PurchaseRefused | StepPassed | InstanceNoticed | InstanceAtRisk
    | AllocationEnded | StrayFound | MarketDraining | MarketClosing | Billed | PricesChanged | EstimatesChanged
    | MarketLeftOpen
)  # fmt: skip
