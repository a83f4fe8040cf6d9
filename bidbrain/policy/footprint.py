"""Expected cost, work and cost per unit of work of a footprint (thesis, section 4.3.2, equations 4.1 - 4.4).

A footprint is a set of allocations; allocation i is k_i machines of one type bought together. Times are in hours,
prices per machine hour in one currency, work in vCPU hours. The policies call these functions as they are; the
simulator's kernel compiles the same lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from numba.extending import register_jitable


@register_jitable
def expected_charge(beta: float, price: float, machines: float, left_h: float) -> float:
    """(4.1) C[i] = (1 - beta_i) P_i k_i t_r + beta_i 0: an eviction inside the hour refunds it."""
    return (1.0 - beta) * price * machines * left_h


@register_jitable
def eviction_free(betas: Sequence[float]) -> float:
    """prod_j (1 - beta_j): the probability that no allocation of the footprint is evicted (in 4.2)."""
    product = 1.0
    for beta in betas:
        product *= 1.0 - beta
    return product


@register_jitable
def useful_until(beta: float, left_h: float, median_h: float) -> float:
    """omega_i of (4.2): the time left in the hour and the median time to eviction, weighted by beta."""
    return (1.0 - beta) * left_h + beta * median_h


@register_jitable
def useful_time(omega_h: float, eviction_free: float, lambda_h: float, sigma_h: float) -> float:
    """(4.2) dt_i = omega_i - (1 - prod_j (1 - beta_j)) lambda - sigma; not below 0.

    sigma only when the footprint changes.
    """
    return max(0.0, omega_h - (1.0 - eviction_free) * lambda_h - sigma_h)


@register_jitable
def allocation_work(machines: float, useful_h: float, vcpus_per_machine: float) -> float:
    """k_i dt_i nu_i: one term of (4.3)."""
    return machines * useful_h * vcpus_per_machine


@register_jitable
def scaling_efficiency(vcpus: float, job_vcpus: float, phi: float) -> float:
    """phi of (4.3) at a size: 1 up to the job's own size; beyond it every further vCPU counts phi.

    The thesis: the first-order coefficient of the scaling curve.
    """
    if vcpus <= job_vcpus:
        return 1.0
    return (job_vcpus + phi * (vcpus - job_vcpus)) / vcpus


@register_jitable
def expected_work(efficiency: float, works: Sequence[float]) -> float:
    """(4.3) W = phi sum_i k_i dt_i nu_i."""
    total = 0.0
    for work in works:
        total += work
    return efficiency * total


@register_jitable
def cost_per_work(cost: float, work: float) -> float:
    """(4.4) E = C / W; infinite without work."""
    return cost / work if work > 0.0 else float("inf")


@register_jitable
def renewal_index(
    survive: float,
    hour_cost: float,
    reliable_share: float,
    held_h: float,
    useful_h: float,
    lambda_share_h: float,
) -> float:
    """Cost per useful hour of one slot as a renewal process (our own, not the thesis'; the lower the better).

    (P(survive) hour's cost + reliable share x held time) / (useful time - P(evict) lambda share). Equation 4.4 divides
    the reliable machines' whole hour by work that stops at an eviction; here both count over the mean held time,
    because the slot is filled again at once after an eviction.
    """
    useful = useful_h - (1.0 - survive) * lambda_share_h
    if useful <= 0.0:
        return float("inf")
    return (survive * hour_cost + reliable_share * held_h) / useful
