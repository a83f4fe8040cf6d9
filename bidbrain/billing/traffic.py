"""The traffic between a job's machines, and its price between zones and regions. Pure.

A machine sends and receives `gb_per_h` GB in an hour, with all others of the fleet in equal shares: partitions of the
model, and the machines that read and change them, are spread evenly. So two machines exchange gb_per_h / (N - 1), and
a fleet costs that, at the price of the route between them, for each pair. A fleet in one zone costs nothing, wherever
that is; one that is torn in halves costs most. Prices lie in traffic.csv, dated, with their source.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from bidbrain.history.locations import Location, location_of
from bidbrain.history.prices import ON_DEMAND_ZONE, Market
from bidbrain.money import micro_usd

Floats = npt.NDArray[np.float64]
ZONES = "zone>zone"  # the route between any two zones of a region
ANY = "*"


class UnknownRouteError(ValueError):
    """The price of a route is not known; the message is one sentence."""


@cache
def packaged_prices() -> Mapping[str, int]:
    """The table in the package: micro-dollars per GB by route, FROM>TO; TO is * for all other regions."""
    text = files("bidbrain.billing").joinpath("traffic.csv").read_text("utf-8")
    rows = csv.DictReader(text.splitlines())
    return {f"{row['from']}>{row['to']}": micro_usd(row["usd_per_gb"]) for row in rows}


def prices_with(usd_per_gb: Mapping[str, float]) -> dict[str, int]:
    """The table with a user's own prices over it. Raises UnknownRouteError for a route that is none."""
    for route in usd_per_gb:
        ends = route.split(">")
        known = route == ZONES or (
            len(ends) == 2
            and ends[0] != ends[1]
            and all(end == ANY or ((at := location_of(end)) is not None and at.region == end) for end in ends)
        )
        if not known:
            raise UnknownRouteError(f"found the route {route!r}, expected us-east-1>us-west-2 or {ZONES}")
    return {**packaged_prices(), **{route: micro_usd(price) for route, price in usd_per_gb.items()}}


@dataclass(frozen=True)
class Routes:
    """The prices of traffic in a fleet. prices: see `packaged_prices`; home: zone of on-demand machines."""

    home: str
    prices: Mapping[str, int] = field(default_factory=packaged_prices)

    def place(self, market: Market) -> Location:
        """Where machines of a market are. Raises UnknownRouteError."""
        name = self.home if market.zone == ON_DEMAND_ZONE else market.zone
        if (found := location_of(name)) is None:
            raise UnknownRouteError(
                f"{name} names no zone of AWS, expected one (us-east-1a) in it: traffic is paid by zone and region"
            )
        return found

    def price(self, one: Location, other: Location) -> int:
        """Micro-dollars per GB between two places, the mean of both directions; 0 within a zone.

        Raises UnknownRouteError.
        """
        if one == other:
            return 0
        if one.region == other.region:
            return self.prices[ZONES]
        return (self._one_way(one.region, other.region) + self._one_way(other.region, one.region) + 1) // 2

    def _one_way(self, start: str, end: str) -> int:
        for route in (f"{start}>{end}", f"{start}>{ANY}", f"{ANY}>{end}", f"{ANY}>{ANY}"):
            if route in self.prices:
                return self.prices[route]
        raise UnknownRouteError(
            f"what data costs from {start} to {end} is not known, expected a price of {start}>{end}"
        )

    def matrix(self, places: Sequence[Location]) -> Floats:
        """Micro-dollars per GB between each two places."""
        return np.array([[self.price(one, other) for other in places] for one in places], np.float64)


def carried(machines: Sequence[float] | Floats, rates: Floats) -> float:
    """The cost of a fleet's traffic: per hour, where `rates` is GB per machine hour x price per GB by two places.

    machines: by place. Each exchanges equal shares with all others: sum over pairs of rates / (N - 1).
    """
    at = np.asarray(machines, np.float64)
    return float(at @ rates @ at / 2.0 / max(1.0, at.sum() - 1.0))
