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
from bidbrain.money import HOUR_S, micro_usd
from bidbrain.risk.survival import RECENT_S

REFRESH_S = 60
GONE_S = 600
# The archive is read and written as a whole, and grows for years. Beyond so many rows new ones wait until they are one
# in so many of it, but no longer than this: a process that begins asks for the last two hours anyway.
ARCHIVE_ROWS, ARCHIVE_SHARE, ARCHIVE_S = 20_000, 500, HOUR_S
KEPT_S = 48 * HOUR_S  # of prices; nobody asks for older ones, and a process may live for months


class Ec2Prices:
    """Prices of some markets from `describe_spot_price_history`, two hours back and on from there.

    trouble: why they are not archived, a sentence; empty: they are, or are not to be.
    """

    def __init__(self, ec2: Any, markets: Sequence[Market], archive: Path | None = None) -> None:
        self._ec2 = ec2
        self._markets = frozenset(markets)
        self._archive = archive
        self._rows: dict[Market, dict[int, int]] = {market: {} for market in markets}
        self._steps: dict[Market, Steps] = {}  # of the rows, until a market has new ones
        self._asked_s: int | None = None
        self._seen_s: dict[Market, int] = {}  # when an answer last had the market
        self._unkept: list[Row] = []  # that the archive lacks
        self._archived, self._archived_s = 0, 0  # how many rows it has, and since when
        self.trouble = ""

    def refresh(self, now_s: int) -> None:
        """Ask again if the last time was a minute ago."""
        if self._asked_s is not None and now_s < self._asked_s + REFRESH_S:
            return
        since_s = now_s - RECENT_S if self._asked_s is None else self._asked_s - REFRESH_S
        for at_s, market, price in self._fetch(since_s, now_s):
            if self._archive is not None and at_s not in self._rows[market]:
                self._unkept.append((at_s, market.instance_type, market.zone, market.product, price))
            if self._rows[market].get(at_s) != price:
                self._rows[market][at_s] = price
                self._steps.pop(market, None)
            self._seen_s[market] = now_s
        self._asked_s = now_s
        self._keep(now_s)

    def _forget_old(self, market: Market) -> None:
        """Drop the rows before the one that held `KEPT_S` ago."""
        assert self._asked_s is not None
        rows, since_s = self._rows[market], self._asked_s - KEPT_S
        held_s = max((at_s for at_s in rows if at_s <= since_s), default=since_s)
        if any(at_s < held_s for at_s in rows):
            self._rows[market] = {at_s: price for at_s, price in rows.items() if at_s >= held_s}

    def _keep(self, now_s: int) -> None:
        """Archive what is new. Whoever asks for prices gets them without an archive, too; the next time tries again."""
        if self._archive is None or not self._unkept:
            return
        is_large = self._archived > ARCHIVE_ROWS + ARCHIVE_SHARE * len(self._unkept)
        if is_large and now_s < self._archived_s + ARCHIVE_S:
            return
        try:
            _, self._archived = append_rows(self._archive, self._unkept)
        except OSError as error:
            self.trouble = f"prices are not archived: {self._archive}: {error.strerror or error}"
        except HistoryError as error:
            self.trouble = f"prices are not archived, move the file away: {error}"
        else:
            self._unkept, self._archived_s, self.trouble = [], now_s, ""

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
        if market not in self._steps and self._rows[market]:
            self._forget_old(market)
            rows = self._rows[market]
            self._steps[market] = Steps.from_rows(rows.keys(), rows.values())
        return self._steps.get(market)

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
