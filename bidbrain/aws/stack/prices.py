"""Prices of a site's types: on-demand from the config, AWS's price list or the package's table; spot as of now."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from bidbrain.aws.calls import errors
from bidbrain.aws.clients import NO_RETRY, Clients
from bidbrain.aws.site import Site
from bidbrain.aws.stack.checks import LATEST_S, TABLE, Unread
from bidbrain.aws.stack.rights import short
from bidbrain.live.cloud import CloudError
from bidbrain.machines import UnknownTypeError, find_type
from bidbrain.money import micro_usd

USD = "USD"


def on_demand_price(aws: Clients, site: Site, name: str) -> tuple[int | None, str]:
    """Micro-dollars per hour and where they are from: the config, AWS's price list, the package's table.

    A price list in another currency is no source of dollars, and the package's dollars are none of its region.
    """
    if name in site.on_demand:
        return micro_usd(str(site.on_demand[name])), "the config"
    prices = _listed(aws, site.region, name)
    if USD in prices:
        return micro_usd(prices[USD]), "AWS's price list"
    if prices:
        return None, f"AWS's price list, which has {' and '.join(prices)}, not {USD}"
    try:
        return find_type(name, LATEST_S).on_demand, TABLE
    except UnknownTypeError:
        return None, "no source knows it"


def _listed(aws: Clients, region: str, name: str) -> dict[str, str]:
    """The price list's Linux price on shared hardware, by currency; empty where it cannot be read."""
    wanted = {
        "instanceType": name,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    try:
        with errors("prices"):
            answer = aws.client("pricing", NO_RETRY).get_products(ServiceCode="AmazonEC2", Filters=filters)
    except CloudError:
        return {}
    for text in answer.get("PriceList", ()):
        for term in json.loads(text).get("terms", {}).get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                if found := {
                    unit: each for unit, each in dimension["pricePerUnit"].items() if float(each) > 0
                }:
                    return found
    return {}


def spot_prices(aws: Clients, site: Site, now: datetime) -> dict[tuple[str, str], int] | Unread:
    try:
        with errors("spot prices"):
            pages = (
                aws.client("ec2")
                .get_paginator("describe_spot_price_history")
                .paginate(
                    InstanceTypes=list(site.types),
                    ProductDescriptions=["Linux/UNIX"],
                    Filters=[{"Name": "availability-zone", "Values": list(site.zones)}],
                    StartTime=now - timedelta(hours=1),
                    EndTime=now,
                )
            )
            newest: dict[tuple[str, str], tuple[datetime, int]] = {}
            for page in pages:
                for entry in page["SpotPriceHistory"]:
                    key = (entry["InstanceType"], entry["AvailabilityZone"])
                    if key[0] not in site.types or key[1] not in site.zones:
                        continue
                    row = (entry["Timestamp"], micro_usd(entry["SpotPrice"]))
                    newest[key] = max(newest.get(key, row), row)
    except CloudError as error:
        return Unread(short(error))
    return {key: price for key, (_, price) in newest.items()}
