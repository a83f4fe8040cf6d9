"""The policy protocol: `decide(now, view) -> actions with a reason`, the same live and simulated.

A policy is made for one job (`Policy(setting, start_s)`). It is asked at the job's start, after every event (grant,
refusal, eviction, end of an allocation) and at the instant that it asked for; it keeps no clock and no account. On
recorded markets an order that is answered at once is no event: the decision that made it says when to ask again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Protocol

from bidbrain.history.prices import Market
from bidbrain.money import HOUR_S
from bidbrain.risk.book import Hazard
from bidbrain.risk.eviction import PriceNow
from bidbrain.setting import Workload


class Phase(StrEnum):
    """The state of an allocation."""

    REQUESTED = "requested"
    HELD = "held"
    LEAVING = "leaving"  # held, ends with its hour


@dataclass(frozen=True)
class Offer:
    """A market now: price, highest price of the last two hours, on-demand price (micro-dollars per machine hour).

    nu: work per time of one machine (its vCPUs, or what the running job measured).
    """

    market: Market
    price: int
    recent_high: int
    on_demand: int
    vcpus: int
    nu: float

    @property
    def now(self) -> PriceNow:
        return PriceNow(self.price, self.recent_high)


@dataclass(frozen=True)
class Holding:
    """One allocation. Times in s; hour_start_s and hour_price are those of its running hour."""

    number: int
    market: Market
    vcpus: int
    bid: int
    phase: Phase
    grant_s: int
    hour_start_s: int
    hour_price: int

    @property
    def hour_end_s(self) -> int:
        return self.hour_start_s + HOUR_S


class Risk(Protocol):
    """The odds of every pool, as learned so far."""

    def hazard(self, market: Market, now_s: int, age_h: float = 0.0) -> Hazard:
        """Of a machine that has lived for age_h."""
        ...


@dataclass(frozen=True)
class MarketView:
    """A policy's input: offers with a price, holdings by number, the job (live with measured figures), the
    work that is left, the risk of the pools (None: not known), and the allocations that the cloud has warned of."""

    offers: Sequence[Offer]
    holdings: Sequence[Holding]
    job: Workload
    work_left_vcpu_s: float = 0.0
    risk: Risk | None = None
    warned: frozenset[int] = frozenset()

    @cached_property
    def by_market(self) -> dict[Market, Offer]:
        return {offer.market: offer for offer in self.offers}

    def room(self, leaving_counts: bool) -> int:
        """vCPUs that the cap leaves. leaving_counts: whether allocations that end with their hour count as held."""
        held = (h.vcpus for h in self.holdings if leaving_counts or h.phase is not Phase.LEAVING)
        return self.job.cap_vcpus - sum(held)


@dataclass(frozen=True)
class Request:
    """Ask for `vcpus` (machines = vcpus / the type's vCPUs) at a bid; granted if the price is then at or below it.

    count: so many such requests, each granted or refused on its own.
    """

    market: Market
    vcpus: int
    bid: int
    count: int = 1


@dataclass(frozen=True)
class RequestOnDemand:
    """Buy on-demand machines of the reliable machines' type (`setting.reliable.instance_type`), the only one."""

    instance_type: str
    vcpus: int


@dataclass(frozen=True)
class Keep:
    """Keep an allocation for the next hour."""

    number: int


@dataclass(frozen=True)
class LetGo:
    """Let an allocation end with its running hour; it cannot be kept after that, as the job may be warned of it."""

    number: int


@dataclass(frozen=True)
class GiveBack:
    """Give an allocation back at once."""

    number: int


Action = Request | RequestOnDemand | Keep | LetGo | GiveBack


@dataclass(frozen=True)
class Decision:
    """Actions in order, one sentence that says why, and when to ask again if nothing happens before.

    wake_s: that instant (None: not by the clock). wake_on_market: ask at the next change of any price or capacity.
    fill: try requests in order until so many vCPUs of spot are held, and drop the rest (None: try all).
    wake_on_notice: ask when the cloud warns of a machine, too (on recorded markets it never does).
    """

    actions: tuple[Action, ...]
    reason: str
    wake_s: int | None = None
    wake_on_market: bool = False
    fill: int | None = None
    wake_on_notice: bool = False


class Policy(Protocol):
    """Decides for one job. Made by `Class(setting, start_s)`."""

    def decide(self, now_s: int, view: MarketView) -> Decision: ...


def next_tick_s(start_s: int, now_s: int, tick_s: int) -> int:
    """The first instant after `now_s` on the grid start, start + tick, ..."""
    return start_s + ((now_s - start_s) // tick_s + 1) * tick_s


def hour_end_wakes(view: MarketView, now_s: int, lead_s: int, requested: bool) -> list[int]:
    """When decisions on held hours are due: `lead_s` before each end, also for a request granted now (`requested`).

    Where that is before the hour begins, nothing is decided on: hours go on by themselves.
    """
    if lead_s > HOUR_S:
        return []
    times = [h.hour_end_s - lead_s for h in view.holdings if h.phase is Phase.HELD]
    if requested:
        times.append(now_s + HOUR_S - lead_s)
    return [time if time > now_s else time + HOUR_S for time in times]


def given_back(holdings: Sequence[Holding], spare: int) -> list[GiveBack]:
    """Give these back, in their order, as far as so many spare vCPUs go."""
    found = []
    for holding in holdings:
        if spare >= holding.vcpus:
            found.append(GiveBack(holding.number))
            spare -= holding.vcpus
    return found


def show_price(price: int) -> str:
    return f"{price / 1e6:.4f} $/h"
