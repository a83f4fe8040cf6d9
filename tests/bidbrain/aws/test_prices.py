"""The prices of a region in a process that lives for months: what is kept of them, and how often they are archived."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bidbrain.aws.prices import ARCHIVE_S, KEPT_S, REFRESH_S, Ec2Prices
from bidbrain.history.archive import write_rows
from bidbrain.history.prices import Market
from bidbrain.history.readers import read_rows
from bidbrain.money import HOUR_S

MARKET = Market("c5.xlarge", "us-east-1a")
BEGIN_S = 1_700_000_000
EVERY_S = HOUR_S // 4


def price_at(at_s: int) -> int:
    """Micro-dollars: another one every quarter of an hour."""
    return 100_000 + at_s // EVERY_S % 97 * 100


class Region:
    """The price history of EC2, which begins each answer with the price that held at its beginning."""

    def get_paginator(self, name: str) -> Region:
        assert name == "describe_spot_price_history"
        return self

    def paginate(self, **asked: Any) -> Iterator[dict[str, Any]]:
        start_s, end_s = (int(asked[name].timestamp()) for name in ("StartTime", "EndTime"))
        yield {
            "SpotPriceHistory": [
                {
                    "InstanceType": MARKET.instance_type,
                    "AvailabilityZone": MARKET.zone,
                    "ProductDescription": MARKET.product,
                    "SpotPrice": f"{price_at(at_s) / 1e6:.6f}",
                    "Timestamp": datetime.fromtimestamp(at_s, UTC),
                }
                for at_s in range(start_s // EVERY_S * EVERY_S, end_s, EVERY_S)
            ]
        }


def test_prices_of_days_do_not_add_up_in_memory() -> None:
    prices = Ec2Prices(Region(), [MARKET])
    for now_s in range(BEGIN_S, BEGIN_S + 6 * 24 * HOUR_S, HOUR_S):
        prices.refresh(now_s)
        steps = prices.steps(MARKET)
        assert steps is not None
        assert steps.highest(now_s - 2 * HOUR_S, now_s) == max(
            price_at(at_s) for at_s in range(now_s - 2 * HOUR_S, now_s + 1, EVERY_S)
        )
    assert len(steps.times) <= KEPT_S // EVERY_S + 6
    for ago_s in (0, HOUR_S, KEPT_S):
        assert prices.price(MARKET, now_s - 1 - ago_s) == price_at(now_s - 1 - ago_s)


def test_prices_are_put_in_order_when_there_are_new_ones_alone() -> None:
    prices = Ec2Prices(Region(), [MARKET])
    prices.refresh(BEGIN_S)
    steps = prices.steps(MARKET)
    until_s = BEGIN_S // EVERY_S * EVERY_S + EVERY_S  # of the price that holds now
    for now_s in range(BEGIN_S + REFRESH_S, until_s, REFRESH_S):
        prices.refresh(now_s)
        assert prices.steps(MARKET) is steps
    prices.refresh(until_s + REFRESH_S)
    assert prices.steps(MARKET) is not steps


@pytest.mark.parametrize(("rows", "written"), [(10, 12), (5000, 3)])
def test_a_large_archive_is_not_written_for_every_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, written: int
) -> None:
    """It is read and written as a whole. Rows of the last hour may wait."""
    monkeypatch.setattr("bidbrain.aws.prices.ARCHIVE_ROWS", 50)
    archive = tmp_path / "prices.csv"
    write_rows(archive, [(at_s, "m5.large", "us-east-1a", "Linux/UNIX", 1) for at_s in range(rows)])
    prices, files = Ec2Prices(Region(), [MARKET], archive), set[int]()
    for now_s in range(BEGIN_S, BEGIN_S + 3 * HOUR_S, EVERY_S):
        before = archive.stat().st_mtime_ns
        prices.refresh(now_s)
        files |= {archive.stat().st_mtime_ns} - {before}
    kept = [row[0] for row in read_rows(archive) if row[1] == MARKET.instance_type]
    assert written - 1 <= len(files) <= written
    assert now_s - max(kept) < ARCHIVE_S + EVERY_S
