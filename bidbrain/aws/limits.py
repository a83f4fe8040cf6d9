"""The limits of a stack: the types, number and cost of its machines. The operator sets, the buyer enforces them. Pure.

`proteus aws up` writes them as one object into the stack's bucket, where the roles of the stack can read and not write.
So a job cannot raise the limits of the person who pays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bidbrain.aws.site import Site
from bidbrain.history.prices import Market
from bidbrain.machines import UnknownTypeError, types_at
from bidbrain.money import micro_usd
from bidbrain.setting import Listing, Reliable

MicroUsd = Annotated[int, Field(gt=0)]


class LimitsError(ValueError):
    """An object that holds no limits, in one sentence."""


@dataclass(frozen=True)
class Catalog:
    """The offers that may be bought: spot markets, and the type of on-demand machines."""

    listings: tuple[Listing, ...]
    reliable: Reliable

    @property
    def markets(self) -> tuple[Market, ...]:
        """The spot markets."""
        return tuple(listing.market for listing in self.listings)

    @cached_property
    def by_market(self) -> Mapping[Market, Listing]:
        """The spot markets with their prices on demand and vCPUs."""
        return {listing.market: listing for listing in self.listings}

    def vcpus(self, market: Market) -> int | None:
        """The vCPUs of one machine of a market; None: it may not be bought."""
        if market == self.reliable.market:
            return self.reliable.vcpus_per_machine
        listing = self.by_market.get(market)
        return None if listing is None else listing.vcpus


class Limits(BaseModel):
    """The machines that a stack may have, how many at once, and what they may cost.

    machines: of a job at once, reliable ones included. job_micro_usd: what one job may cost. stack_micro_usd: what all
    jobs together may cost on one head; None: no limit of the sum.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    site: Site
    machines: Annotated[int, Field(ge=1)]
    job_micro_usd: MicroUsd
    stack_micro_usd: MicroUsd | None = None

    def text(self) -> str:
        """As the object in the bucket holds it; without other regions as a head of an earlier version can read it."""
        unsaid = None if self.site.regions else {"site": {"regions"}}
        return self.model_dump_json(indent=1, exclude=unsaid) + "\n"

    @staticmethod
    def parsed(text: str, where: str) -> Limits:
        """Raises LimitsError."""
        try:
            return Limits.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(each) for each in first["loc"]) or "it"
            raise LimitsError(f"{where}: {key}: {first['msg']}; `proteus aws up` writes it anew") from None

    def catalog(self, now_s: int) -> Catalog:
        """Every type in every zone, with the prices on demand of then. Raises LimitsError."""
        site = self.site
        prices = {name: micro_usd(price) for name, price in site.on_demand.items()}
        try:
            types = types_at(list(site.bought_types), now_s, prices, site.vcpus)
        except UnknownTypeError as error:
            raise LimitsError(error.problem) from None
        listings = tuple(
            Listing(Market(kind, zone), *types[kind]) for kind in site.types for zone in site.all_zones
        )
        price, vcpus = types[site.of_reliable]
        return Catalog(listings, Reliable(site.of_reliable, 0, price, vcpus))
