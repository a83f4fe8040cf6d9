"""Spot price history from AWS: `describe_spot_price_history`, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from bidbrain.history.readers import Row
from bidbrain.instants import Interval
from bidbrain.money import micro_usd


class FetchError(RuntimeError):
    """AWS refused the price history, or could not be asked for it; the message is one sentence."""


def fetch_rows(client: Any, window: Interval, types: Sequence[str], products: Sequence[str]) -> Iterator[Row]:
    """Rows of one region (`client`: boto3 EC2) within a window; types empty means all. Raises FetchError."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    wanted: dict[str, Any] = {
        "StartTime": datetime.fromtimestamp(window.start_s, UTC),
        "EndTime": datetime.fromtimestamp(window.end_s, UTC),
        "ProductDescriptions": list(products),
    }
    if types:
        wanted["InstanceTypes"] = list(types)
    try:
        for page in client.get_paginator("describe_spot_price_history").paginate(**wanted):
            for entry in page["SpotPriceHistory"]:
                yield (
                    int(entry["Timestamp"].timestamp()),
                    entry["InstanceType"],
                    entry["AvailabilityZone"],
                    entry["ProductDescription"],
                    micro_usd(entry["SpotPrice"]),
                )
    except ClientError as error:
        raise FetchError(f"AWS refused the price history: {error}") from None
    except BotoCoreError as error:  # no credentials, no network
        raise FetchError(f"AWS could not be asked for the price history: {error}") from None
    except ResponseParserError:  # the page of a proxy, for example
        raise FetchError("what answered the question for the price history is not EC2") from None
