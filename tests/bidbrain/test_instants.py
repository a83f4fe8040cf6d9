"""ISO instants and intervals."""

import pytest

from bidbrain.instants import Interval, parse_instant, show_instant


def test_dates_and_instants() -> None:
    assert show_instant(parse_instant("2016-03-26")) == "2016-03-26T00:00:00Z"
    assert parse_instant("2016-03-26T13:00Z") == parse_instant("2016-03-26T14:00:00+01:00")
    assert parse_instant("2016-03-26T13:00:00.9") == parse_instant("2016-03-26T13:00:00Z")


@pytest.mark.parametrize("text", ["2016-03-26", "2016-03-27/2016-03-26", "a/b", "2016-01-01/2016-01-01"])
def test_what_is_no_interval_says_so(text: str) -> None:
    with pytest.raises(ValueError, match=r"interval|date|ends before"):
        Interval.parse(text)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_an_instant_that_its_zone_puts_outside_of_all_years_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="outside of the years 1 to 9999"):
        parse_instant(text)


def test_cutting_holes_out_of_an_interval() -> None:
    whole = Interval(0, 100)
    assert whole.minus((Interval(10, 20), Interval(15, 30), Interval(90, 200))) == (
        Interval(0, 10),
        Interval(30, 90),
    )
    assert whole.minus((Interval(-5, 200),)) == ()
