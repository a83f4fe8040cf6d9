"""The regions of a stack in a config: what is refused, in one sentence, and what follows from the rest."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from bidbrain.aws.limits import Limits
from bidbrain.aws.site import Site
from bidbrain.history.prices import Market
from tests.bidbrain.aws.demo_stack import SITE, WIDE

WEST = {"zones": ["us-west-2a"]}


def site(regions: dict[str, Any], **more: Any) -> Site:
    return Site(**{**SITE.model_dump(), "regions": regions, **more})


@pytest.mark.parametrize(
    ("regions", "more", "why"),
    [
        (
            {"us-east-1": {"zones": ["us-east-1a"]}},
            {},
            "expected others than us-east-1, which is market.region",
        ),
        (
            {"us-west-2": {"zones": ["us-west-1a"]}},
            {},
            "expected zones of us-west-2 there, which us-west-1a is not",
        ),
        ({"us-west-2": {"zones": ["us-west-2a", "us-west-2a"]}}, {}, "expected each zone of us-west-2 once"),
        ({"us-west-2": {"zones": []}}, {}, "at least 1 item"),
        ({"us-west-2": {**WEST, "cidr": "10.1.0.0"}}, {}, "expected a private network of /16 to /24"),
        ({"us-west-2": {**WEST, "cidr": "10.1.0.1/16"}}, {}, "expected a network such as 10.81.0.0/16"),
        ({"us-west-2": {**WEST, "cidr": "8.8.0.0/16"}}, {}, "expected a private network"),
        ({"us-west-2": {**WEST, "type": "x"}}, {}, "Extra inputs are not permitted"),
        (
            {"us-west-2": WEST},
            {"image": "ami-0123456789abcdef0"},
            "expected the image of us-west-2, as ami-0123456789abcdef0 is",
        ),
        (
            {"us-west-2": WEST, "eu-west-1": {"zones": ["eu-west-1a"], "cidr": "10.81.128.0/20"}},
            {},
            "expected networks that do not overlap: eu-west-1 has 10.81.128.0/20 and us-west-2 10.81.0.0/16",
        ),
        (
            {f"eu-west-{n}": {"zones": [f"eu-west-{n}a"]} for n in range(1, 5)},
            {},
            "expected at most 3 beside us-east-1",
        ),
    ],
)
def test_what_is_refused(regions: dict[str, Any], more: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError) as found:
        site(regions, **more)
    assert why in str(found.value) and found.value.errors()[0]["loc"][0] == "regions"


def test_zones_are_of_the_region_that_is_named() -> None:
    with pytest.raises(
        ValidationError, match="zones of us-east-1, which eu-west-1a of eu-west-1 is not"
    ) as found:
        site({}, zones=["us-east-1a", "eu-west-1a"])
    assert found.value.errors()[0]["loc"] == ("zones",)
    assert site({}, zones=["us-east-1a", "us-east-1-bos-1a"]).zones[1] == "us-east-1-bos-1a"  # a local zone


def test_a_stack_may_buy_every_type_in_every_zone_of_its_regions() -> None:
    limits = Limits(site=WIDE, machines=2, job_micro_usd=1_000_000)
    again = Limits.parsed(limits.text(), "limits.json")
    assert again == limits
    markets = again.catalog(1 << 31).markets
    zones = ("us-east-1a", "us-east-1b", "us-west-2a", "us-west-2c")
    assert set(markets) == {Market(kind, zone) for kind in SITE.types for zone in zones}
    assert (
        again.catalog(1 << 31).reliable
        == Limits(site=SITE, machines=2, job_micro_usd=1).catalog(1 << 31).reliable
    )


def test_networks_of_a_config_are_apart_without_a_word() -> None:
    wide = site({"us-west-2": WEST, "eu-west-1": {"zones": ["eu-west-1a"]}})
    assert [str(wide.cidr_of(name)) for name in wide.regions] == ["10.81.0.0/16", "10.82.0.0/16"]
    part = wide.part_in("eu-west-1")
    assert (part.region, part.zones, part.regions, part.all_types) == (
        "eu-west-1",
        ("eu-west-1a",),
        {},
        SITE.types,
    )
