"""Money as whole micro-dollars: sums are exact, and every line of a bill is rounded once, half up.

A price is an integer number of micro-dollars per instance hour (0.0183 $/h is 18_300).
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, InvalidOperation

from numba.extending import register_jitable

MICRO_USD = 1_000_000
MOST_USD = 10**12  # micro-dollars beyond it are no int64
HOUR_S = 3600


def micro_usd(text: str | int | float | Decimal) -> int:
    """Dollars as written ("0.0183") to whole micro-dollars, half up.

    Raises ValueError where `text` is no finite number, or one of more than 10^12.
    """
    try:
        value = Decimal(str(text).strip())
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a number") from None
    if not value.is_finite():
        raise ValueError(f"{text!r} is not a finite number")
    if abs(value) > MOST_USD:
        raise ValueError(f"{text!r} is more than {MOST_USD:,} $")
    return int((value * MICRO_USD).quantize(Decimal(1), rounding=ROUND_HALF_UP))


def usd(amount_micro_usd: int | float) -> float:
    """Micro-dollars to dollars, for screens and plots only."""
    return amount_micro_usd / MICRO_USD


def show_usd(amount_micro_usd: int) -> str:
    """Exact dollars with six decimals: -1_500_000 is '-1.500000'."""
    sign = "-" if amount_micro_usd < 0 else ""
    whole, part = divmod(abs(amount_micro_usd), MICRO_USD)
    return f"{sign}{whole}.{part:06d}"


@register_jitable
def rounded_ratio(numerator: int, denominator: int) -> int:
    """numerator / denominator to the nearest integer, half up; both non-negative."""
    return (2 * numerator + denominator) // (2 * denominator)


@register_jitable
def machine_seconds_micro_usd(
    price_micro_usd_per_h: int, vcpus: int, vcpus_per_machine: int, seconds: int
) -> int:
    """The cost of `vcpus` of a type for some seconds: price x (vcpus / vcpus_per_machine) x seconds / 3600.

    The count of machines may be a fraction; the result is one line of a bill, rounded half up.
    """
    return rounded_ratio(price_micro_usd_per_h * vcpus * seconds, vcpus_per_machine * HOUR_S)
