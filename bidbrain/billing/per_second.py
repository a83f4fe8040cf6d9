"""The rules since December 2017: by the second, 60 s at least; no bids, a maximum price is optional.

The price is that of the beginning of each instance hour. An instance that the provider takes back within its
first hour is free; later it pays for the seconds it had.
"""

from __future__ import annotations

from numba.extending import register_jitable

from bidbrain.money import HOUR_S, machine_seconds_micro_usd

MINIMUM_S = 60


@register_jitable
def charge_at_close(price: int, vcpus: int, vcpus_per_machine: int, used_s: int, hour: int) -> int:
    """The used seconds of instance hour number `hour` (0 is the first, it has the minimum of 60 s)."""
    seconds = max(used_s, MINIMUM_S) if hour == 0 else used_s
    return machine_seconds_micro_usd(price, vcpus, vcpus_per_machine, seconds)


@register_jitable
def charge_at_eviction(price: int, vcpus: int, vcpus_per_machine: int, used_s: int, hour: int) -> int:
    """As `charge_at_close`, but nothing within the first hour."""
    if hour == 0 and used_s < HOUR_S:
        return 0
    return charge_at_close(price, vcpus, vcpus_per_machine, used_s, hour)
