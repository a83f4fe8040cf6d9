"""What data costs between places: the table, its directions, a user's own prices, and names that hold no zone."""

import csv
from datetime import date
from importlib.resources import files

import pytest

from bidbrain.billing.traffic import ZONES, Routes, UnknownRouteError, prices_with
from bidbrain.history.locations import Location, location_of
from bidbrain.history.prices import Market

EAST, WEST = Market("c5.xlarge", "us-east-1a"), Market("c5.xlarge", "us-west-2a")


@pytest.mark.parametrize(
    ("name", "region", "zone"),
    [
        ("us-east-1a", "us-east-1", "us-east-1a"),
        ("us-gov-west-1b", "us-gov-west-1", "us-gov-west-1b"),
        ("ap-southeast-2", "ap-southeast-2", "ap-southeast-2"),
        ("us-west-2-lax-1a", "us-west-2", "us-west-2-lax-1a"),
        ("aws_us-west-2a_v100_16nodes_2023-08", "us-west-2", "us-west-2a"),
    ],
)
def test_a_name_holds_its_place(name: str, region: str, zone: str) -> None:
    assert location_of(name) == Location(region, zone)


@pytest.mark.parametrize("name", ["a", "pool", "on-demand", "europe-west1-b", "us-east-1abc", "demo-cluster"])
def test_other_names_hold_none(name: str) -> None:
    assert location_of(name) is None
    assert Market("node", name).region == ""


def price(routes: Routes, one: str, other: str) -> int:
    places = [location_of(zone) for zone in (one, other)]
    assert all(places)
    return routes.price(places[0], places[1])


def test_prices_by_zone_and_region() -> None:
    routes = Routes("us-east-1a")
    assert price(routes, "us-east-1a", "us-east-1a") == 0
    assert price(routes, "us-east-1a", "us-east-1b") == 20_000
    assert price(routes, "us-east-1a", "us-east-2a") == 10_000
    assert price(routes, "us-east-1a", "us-west-2a") == 20_000
    # A dollar for each direction's half.
    assert price(routes, "us-east-1a", "sa-east-1a") == price(routes, "sa-east-1a", "us-east-1a") == 79_000
    places = [routes.place(EAST), routes.place(WEST), routes.place(Market("c5.xlarge", "on-demand"))]
    assert routes.matrix(places).tolist() == [[0, 20_000, 0], [20_000, 0, 20_000], [0, 20_000, 0]]


def test_a_users_prices_go_before_the_table() -> None:
    own = Routes("us-east-1a", prices_with({"us-east-1>us-west-2": 0.5, ZONES: 0.0}))
    assert price(own, "us-east-1a", "us-west-2a") == 260_000
    assert price(own, "us-east-1a", "us-east-1b") == 0
    assert (
        price(Routes("me-south-1a", prices_with({"me-south-1>*": 0.11})), "me-south-1a", "us-east-1b")
        == 65_000
    )


def test_what_is_not_known_is_one_sentence() -> None:
    with pytest.raises(UnknownRouteError, match="from me-south-1 to us-east-1 is not known"):
        price(Routes("us-east-1a"), "us-east-1a", "me-south-1b")
    with pytest.raises(UnknownRouteError, match="p names no zone of AWS"):
        Routes("us-east-1a").place(Market("node", "p"))
    for route in ("us-east-1", "us-east-1a>us-west-2", "us-east-1>us-east-1", "here>there"):
        with pytest.raises(UnknownRouteError, match=f"found the route '{route}', expected"):
            prices_with({route: 1.0})


def test_each_row_of_the_table_is_dated_and_named() -> None:
    for row in csv.DictReader(
        files("bidbrain.billing").joinpath("traffic.csv").read_text("utf-8").splitlines()
    ):
        assert date.fromisoformat(f"{row['as_of']}-01")
        assert row["source"]
        assert float(row["usd_per_gb"]) > 0
