"""Exact money."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.money import machine_seconds_micro_usd, micro_usd, rounded_ratio, show_usd
from tests.thorough import examples


@pytest.mark.parametrize(
    ("text", "amount"),
    [("0.0183", 18_300), ("1", 1_000_000), ("0.0000005", 1), ("0.00000049", 0), (" 2.5 ", 2_500_000)],
)
def test_dollars_become_whole_micro_dollars_half_up(text: str, amount: int) -> None:
    assert micro_usd(text) == amount


@pytest.mark.parametrize("text", ["", "abc", "nan", "inf", "1,5"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        micro_usd(text)


@pytest.mark.parametrize("text", ["1e13", "-1e13", "1e23", "1e999999"])
def test_more_than_sums_can_hold_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is more than 1,000,000,000,000"):
        micro_usd(text)


@given(st.integers(0, 10**12), st.integers(1, 10**6))
@settings(deadline=None, derandomize=True, max_examples=examples(200))
def test_rounding_is_half_up(numerator: int, denominator: int) -> None:
    exact = Fraction(numerator, denominator)
    rounded = rounded_ratio(numerator, denominator)
    assert -Fraction(1, 2) < rounded - exact <= Fraction(1, 2)


@given(st.integers(1, 10**8), st.integers(1, 4096), st.sampled_from([1, 2, 4, 8, 36]), st.integers(0, 3600))
@settings(deadline=None, derandomize=True, max_examples=examples(200))
def test_machine_seconds_are_the_nearest_micro_dollar(price: int, vcpus: int, nu: int, seconds: int) -> None:
    exact = Fraction(price) * Fraction(vcpus, nu) * Fraction(seconds, 3600)
    assert abs(machine_seconds_micro_usd(price, vcpus, nu, seconds) - exact) <= Fraction(1, 2)


def test_money_prints_exactly() -> None:
    assert show_usd(-1_500_001) == "-1.500001"
    assert show_usd(0) == "0.000000"
