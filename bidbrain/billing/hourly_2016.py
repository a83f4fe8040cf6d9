"""The rules of the bidding era (2009 - November 2017), thesis section 4.5.2.

Granted when price <= bid. Charged at every hour boundary from the grant, a whole hour, at the price of that moment.
Evicted at the first moment with price > bid: the hour in progress is refunded; at the boundary itself the finished
hour stays charged. Terminated by the user: the hour stays charged. At the job's end the unused part of an open
hour is not charged (all schemes alike, as in the thesis).
"""

from __future__ import annotations

from numba.extending import register_jitable

from bidbrain.money import HOUR_S, machine_seconds_micro_usd


@register_jitable
def charge_at_start(price: int, vcpus: int, vcpus_per_machine: int) -> int:
    """The charge of the whole hour, when it begins."""
    return machine_seconds_micro_usd(price, vcpus, vcpus_per_machine, HOUR_S)


@register_jitable
def refund_at_eviction(price: int, vcpus: int, vcpus_per_machine: int, used_s: int) -> int:
    """The refund at an eviction: all of the hour in progress, nothing of a finished one."""
    return machine_seconds_micro_usd(price, vcpus, vcpus_per_machine, HOUR_S) if used_s < HOUR_S else 0


@register_jitable
def refund_at_job_end(price: int, vcpus: int, vcpus_per_machine: int, used_s: int) -> int:
    """The refund at the job's end: the charge less that of the used seconds, each rounded on its own."""
    whole = machine_seconds_micro_usd(price, vcpus, vcpus_per_machine, HOUR_S)
    return whole - machine_seconds_micro_usd(price, vcpus, vcpus_per_machine, used_s)
