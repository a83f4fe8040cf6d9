"""Spot prices of a region as they are now: asked for once a minute, kept, and archived if a file is given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bidbrain.aws.calls import errors
from bidbrain.history.archive import append_rows
from bidbrain.history.prices import Market, Steps
from bidbrain.history.readers import HistoryError, Row
from bidbrain.money import micro_usd
from bidbrain.risk.survival import RECENT_S

REFRESH_S = 60
GONE_S = 600


class Ec2Prices:
    """Prices of some markets from `describe_spot_price_history`, two hours back and on from there.

    trouble: why they are not archived, a sentence; empty: they are, or are not to be.
    """

    def __init__(self, ec2: Any, markets: Sequence[Market], archive: Path | None = None) -> None:
        self._ec2 = ec2
        self._markets = frozenset(markets)
        self._archive = archive
        self._rows: dict[Market, dict[int, int]] = {market: {} for market in markets}
        self._asked_s: int | None = None
        self._seen_s: dict[Market, int] = {}  # when an answer last had the market
        self._unkept: list[Row] = []  # that the archive lacks
        self.trouble = ""

    def refresh(self, now_s: int) -> None:
        """Ask again if the last time was a minute ago."""
        if self._asked_s is not None and now_s < self._asked_s + REFRESH_S:
            return
        since_s = now_s - RECENT_S if self._asked_s is None else self._asked_s - REFRESH_S
        for at_s, market, price in self._fetch(since_s, now_s):
            if self._archive is not None and at_s not in self._rows[market]:
                self._unkept.append((at_s, market.instance_type, market.zone, market.product, price))
            self._rows[market][at_s] = price
            self._seen_s[market] = now_s
        self._asked_s = now_s
        self._keep()

    def _keep(self) -> None:
        """Archive what is new. Whoever asks for prices gets them without an archive, too; the next time tries again."""
        if self._archive is None or not self._unkept:
            return
        try:
            append_rows(self._archive, self._unkept)
        except OSError as error:
            self.trouble = f"prices are not archived: {self._archive}: {error.strerror or error}"
        except HistoryError as error:
            self.trouble = f"prices are not archived, move the file away: {error}"
        else:
            self._unkept, self.trouble = [], ""

    def _fetch(self, start_s: int, end_s: int) -> list[tuple[int, Market, int]]:
        found = []
        wanted = {
            "InstanceTypes": sorted({market.instance_type for market in self._markets}),
            "ProductDescriptions": sorted({market.product for market in self._markets}),
            "Filters": [{"Name": "availability-zone", "Values": sorted({m.zone for m in self._markets})}],
            "StartTime": datetime.fromtimestamp(start_s, UTC),
            "EndTime": datetime.fromtimestamp(end_s, UTC),
        }
        with errors("spot prices"):
            for page in self._ec2.get_paginator("describe_spot_price_history").paginate(**wanted):
                for entry in page["SpotPriceHistory"]:
                    what = (entry["InstanceType"], entry["AvailabilityZone"], entry["ProductDescription"])
                    if (market := Market(*what)) in self._markets:
                        found.append(
                            (int(entry["Timestamp"].timestamp()), market, micro_usd(entry["SpotPrice"]))
                        )
        return found

    def steps(self, market: Market) -> Steps | None:
        """The known prices of one market; None: AWS never had one for it (the type is not offered there)."""
        rows = self._rows[market]
        return Steps.from_rows(rows.keys(), rows.values()) if rows else None

    def is_quoted(self, market: Market) -> bool:
        """Whether AWS has a price for it now. Every answer begins with the price that held at its beginning, so a
        market that no answer has had for `GONE_S` is gone."""
        seen_s = self._seen_s.get(market)
        return seen_s is not None and self._asked_s is not None and self._asked_s - seen_s < GONE_S

    def price(self, market: Market, at_s: int) -> int | None:
        """Micro-dollars per machine hour; before the first row that is known, that of the first. None: see `steps`."""
        steps = self.steps(market)
        if steps is None:
            return None
        price = steps.price_at(at_s)
        return int(steps.prices[0]) if price is None else price
