"""The interruption bands that AWS publishes per region and type, as rates before anything was observed.

AWS' Spot Instance Advisor names, for each type, the share of instances that were reclaimed in the last month, in five
bands. The file in the package (bands.csv) holds the middle band for everything, since the bands change from week to
week: `proteus pools refresh` makes a file of the same form from a download of the user's. Bands say little about one
zone at one hour: they are where learning begins (`risk.pooled`).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from bidbrain.history.prices import Market

# Source: the legend of https://aws.amazon.com/ec2/spot/instance-advisor/ (2026-08): <5%, 5-10%, 10-15%, 15-20%, >20%.
SOURCE = "https://spot-bid-advisor.s3.amazonaws.com/spot-advisor-data.json"
MONTHLY_SHARE = (0.025, 0.075, 0.125, 0.175, 0.25)  # the middle of each band; above 20%: our own guess
MONTH_H = 730.0
COLUMNS = ("region", "instance_type", "band")
ANY = "*"


class BandsError(ValueError):
    """A file holds no bands; the message is one sentence."""


def band_rate(band: int) -> float:
    """Losses per node hour that reclaim the band's share of instances in a month: -ln(1 - share) / month."""
    return -math.log1p(-MONTHLY_SHARE[band]) / MONTH_H


@dataclass(frozen=True)
class Bands:
    """Bands by (region, type); `*` stands for any."""

    by_pool: Mapping[tuple[str, str], int]

    def rate(self, market: Market) -> float:
        """Losses per node hour of a pool by its type's band; of the middle band if the file does not name it."""
        region = market.region
        for key in ((region, market.instance_type), (ANY, market.instance_type), (region, ANY), (ANY, ANY)):
            if key in self.by_pool:
                return band_rate(self.by_pool[key])
        return band_rate(len(MONTHLY_SHARE) // 2)


@cache
def packaged_bands() -> Bands:
    """The bands of the package's own file."""
    return parse_bands(files("bidbrain.risk").joinpath("bands.csv").read_text("utf-8"), "bands.csv")


def parse_bands(text: str, name: str) -> Bands:
    """Bands from the CSV `region,instance_type,band`; raises BandsError naming the line."""
    lines = csv.reader(text.splitlines())
    if tuple(next(lines, ())) != COLUMNS:
        raise BandsError(f"{name} line 1: expected the columns {','.join(COLUMNS)}")
    found: dict[tuple[str, str], int] = {}
    for number, row in enumerate(lines, 2):
        try:
            region, kind, text_band = row
            band = int(text_band)
            found[region, kind] = range(len(MONTHLY_SHARE))[band] if band >= 0 else int("")
        except (ValueError, IndexError):
            most = len(MONTHLY_SHARE) - 1
            raise BandsError(
                f"{name} line {number}: found {','.join(row)!r}, expected region,type,band with a band of 0 to {most}"
            ) from None
    return Bands(found)


def bands_of_advisor(text: str, name: str) -> list[tuple[str, str, int]]:
    """(region, type, band) of Linux from a download of `SOURCE`; raises BandsError."""
    try:
        regions = json.loads(text)["spot_advisor"]
        rows = [(region, kind, _band(each)) for region, kind, each in _linux(regions)]
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise BandsError(
            f"{name}: not the Spot Instance Advisor's data ({type(error).__name__}: {error}), expected {SOURCE}"
        ) from None
    if not rows:
        raise BandsError(f"{name}: no Linux type in any region, expected {SOURCE}")
    return sorted(rows)


def _linux(regions: Mapping[str, Any]) -> Iterable[tuple[str, str, Any]]:
    for region, systems in regions.items():
        for kind, each in systems.get("Linux", {}).items():
            yield region, kind, each


def _band(each: Mapping[str, Any]) -> int:
    band = int(each["r"])
    if not 0 <= band < len(MONTHLY_SHARE):
        raise ValueError(f"a band of {band}")
    return band


def show_bands(rows: Iterable[tuple[str, str, int]]) -> str:
    """Rows as the CSV that `parse_bands` reads."""
    return "".join(f"{line}\n" for line in (",".join(COLUMNS), *(f"{a},{b},{c}" for a, b, c in rows)))
