"""Published bands: the package's file, a user's download, and files that are neither."""

import json

import pytest

from bidbrain.history.prices import Market
from bidbrain.risk.bands import (
    BandsError,
    band_rate,
    bands_of_advisor,
    packaged_bands,
    parse_bands,
    show_bands,
)

POOL = Market("c5.xlarge", "us-east-1a")
DOWNLOAD = {
    "spot_advisor": {
        "us-east-1": {
            "Linux": {"c5.xlarge": {"s": 50, "r": 4}, "m5.large": {"s": 60, "r": 0}},
            "Windows": {},
        },
        "eu-west-1": {"Windows": {"c5.xlarge": {"s": 1, "r": 2}}},
    }
}


def test_a_band_is_its_share_of_a_month() -> None:
    for band, share in enumerate((0.025, 0.075, 0.125, 0.175, 0.25)):
        assert 1 - 2.718281828459045 ** (-band_rate(band) * 730) == pytest.approx(share)
    assert packaged_bands().rate(POOL) == band_rate(2)


def test_a_download_of_the_users_is_read_and_shown_and_read_again() -> None:
    rows = bands_of_advisor(json.dumps(DOWNLOAD), "download.json")
    assert rows == [("us-east-1", "c5.xlarge", 4), ("us-east-1", "m5.large", 0)]
    bands = parse_bands(show_bands(rows), "bands.csv")
    assert bands.rate(POOL) == band_rate(4)
    assert bands.rate(Market("m5.large", "us-east-1f")) == band_rate(0)
    assert bands.rate(Market("m5.large", "eu-west-1a")) == band_rate(2)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"spot_advisor": 1}', '{"spot_advisor": {"a": {"Linux": {"c5": {"r": 7}}}}}', "{}"]
)
def test_a_download_that_is_none_is_one_sentence(text: str) -> None:
    with pytest.raises(BandsError, match=r"download\.json: not the Spot Instance Advisor's data"):
        bands_of_advisor(text, "download.json")


@pytest.mark.parametrize("row", ["us-east-1,c5", "us-east-1,c5,9", "us-east-1,c5,-1", "a,b,c"])
def test_a_bad_line_is_named(row: str) -> None:
    with pytest.raises(BandsError, match=r"bands\.csv line 2: found"):
        parse_bands(f"region,instance_type,band\n{row}\n", "bands.csv")
    with pytest.raises(BandsError, match=r"bands\.csv line 1: expected the columns"):
        parse_bands("region,band\n", "bands.csv")
