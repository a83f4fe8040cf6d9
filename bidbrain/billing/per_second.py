"""The rules of EC2 since December 2017: billed by the second, 60 s at least; no bids, a maximum price is optional.

The price of an instance hour is that of its beginning. An instance that the provider takes back within its first hour
is free; later its used seconds are charged.
"""

from __future__ import annotations

from numba.extending import register_jitable

from bidbrain.money import HOUR_S, machine_seconds_micro_usd

MINIMUM_S = 60


@register_jitable
def charge_at_close(price: int, vcpus: int, vcpus_per_machine: int, used_s: int, hour: int) -> int:
    """The charge of the used seconds of instance hour number `hour`; the first, 0, is charged for 60 s at least."""
    seconds = max(used_s, MINIMUM_S) if hour == 0 else used_s
    return machine_seconds_micro_usd(price, vcpus, vcpus_per_machine, seconds)


@register_jitable
def charge_at_eviction(price: int, vcpus: int, vcpus_per_machine: int, used_s: int, hour: int) -> int:
    """As `charge_at_close`, but nothing within the first hour."""
    if hour == 0 and used_s < HOUR_S:
        return 0
    return charge_at_close(price, vcpus, vcpus_per_machine, used_s, hour)
