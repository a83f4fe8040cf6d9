"""Expected cost per useful work of machines from several pools (equations 4.1 - 4.4 for a market without bids). Pure.

A machine is paid by the second and lost at its pool's rate; losses come in events that may take many at once. Per hour:

    C = reliable + sum_i n_i p_i
    W = F(V) (1 - lambda sum_i e_i) - boot sum_i e_i (F(V) - F(V - s_i))
    E = C / W

F: work per hour of a size (equation 4.3: phi beyond the job's own); e_i: events per hour of pool i; s_i: what an event
of it takes at once. So a pool that goes as a whole is weighed as a whole: where phi < 1, spreading pays.
Times in hours, prices in any one currency per hour, work in vCPU hours.

The equations are small functions of numbers; compiled loops apply them to a footprint (`Footprint`) and to every choice
that could be added. `pool_search` fills a footprint.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.extending import register_jitable

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Figures = tuple[float, float, float, float, float, float, float, float]
MOST_STOPPED = 0.95  # of the time: where evictions stop the job for longer, the model says nothing any more


@dataclass(frozen=True)
class Choices:
    """The choices of a policy, an entry each: machines that are held already, or new ones of a pool.

    pool: index of its pool; most: machines there may be of it; price: per machine hour, with the share of a boot that a
    new one pays; nu: work per hour of one; loss: losses per machine hour.
    """

    pool: Ints
    most: Floats
    price: Floats
    nu: Floats
    vcpus: Floats
    loss: Floats

    @property
    def arrays(self) -> tuple[Ints, Floats, Floats, Floats, Floats, Floats]:
        """All of them, in order, for the compiled loops."""
        return self.pool, self.most, self.price, self.nu, self.vcpus, self.loss


@dataclass(frozen=True)
class Terms:
    """The terms common to all choices. fixed: cost per hour of reliable machines and machines that are kept anyway.

    fixed_nu, fixed_vcpus: of on-demand machines that work.
    """

    job_vcpus: float
    phi: float
    boot_h: float
    lambda_h: float
    correlation: float
    fixed: float = 0.0
    fixed_nu: float = 0.0
    fixed_vcpus: float = 0.0

    @property
    def figures(self) -> Figures:
        """All of them, in order, as floats for the compiled loops."""
        return (
            *(float(self.job_vcpus), float(self.phi), float(self.boot_h), float(self.lambda_h)),
            *(float(self.correlation), float(self.fixed), float(self.fixed_nu), float(self.fixed_vcpus)),
        )


@register_jitable
def work_rate(job_vcpus: float, phi: float, nu: float, vcpus: float) -> float:
    """F of (4.3): work per hour of machines worth `nu`, of nominal size `vcpus`."""
    size = max(vcpus, 1e-12)
    if size <= job_vcpus:
        return nu
    return (job_vcpus + phi * (size - job_vcpus)) / size * nu


@register_jitable
def taken_at_once(machines: float, correlation: float) -> float:
    """Machines that an event of a pool takes: one, and of those beside it the share that goes with it."""
    return 1.0 + correlation * max(0.0, machines - 1.0)


@register_jitable
def events_and_share(machines: float, lost: float, correlation: float) -> tuple[float, float]:
    """(events per hour, share of the machines that an event takes) of a pool that loses `lost` machines per hour."""
    taken = taken_at_once(machines, correlation)
    return lost / taken, (min(1.0, taken / max(machines, 1e-12)) if machines > 0.0 else 0.0)


@register_jitable
def useful_work(whole: float, lambda_h: float, boot_h: float, events: float, taken: float) -> float:
    """W: the work of all machines, without the stops that events make, and without what they take until it has booted.

    events: per hour; taken: work per hour that they take, each by its rate.
    """
    return whole * (1.0 - min(MOST_STOPPED, lambda_h * events)) - boot_h * taken


@njit(cache=True)
def footprint_value(
    figures: Figures, machines: Floats, lost: Floats, nu: Floats, vcpus: float, cost: float
) -> float:
    """E = C / W of machines by pool: their number, losses per hour and work per hour; infinite without useful work."""
    job_vcpus, phi, boot_h, lambda_h, correlation, _, fixed_nu, _ = figures
    total = fixed_nu + nu.sum()
    whole = work_rate(job_vcpus, phi, total, vcpus)
    all_events, taken = 0.0, 0.0
    for pool in range(len(machines)):
        events, share = events_and_share(machines[pool], lost[pool], correlation)
        part = 1.0 - share * nu[pool] / max(total, 1e-12)
        all_events += events
        taken += events * (whole - work_rate(job_vcpus, phi, total * part, vcpus * part))
    useful = useful_work(whole, lambda_h, boot_h, all_events, taken)
    return cost / useful if useful > 0.0 else np.inf


@njit(cache=True)
def values_with_more(
    figures: Figures,
    choices: tuple[Ints, Floats, Floats, Floats, Floats, Floats],
    pools: tuple[Floats, Floats, Floats],
    vcpus: float,
    cost: float,
    more: Floats,
    values: Floats,
) -> None:
    """Fill values[i] with E of the footprint with more[i] machines of choice i; infinite where more[i] is 0.

    pools: machines, losses and work per hour by pool, as for `footprint_value`.
    """
    job_vcpus, phi, boot_h, lambda_h, correlation, _, fixed_nu, _ = figures
    pool_of, _, price, nu_of, vcpus_of, loss = choices
    machines, lost, nu = pools
    events, gone = np.empty(len(machines)), np.empty(len(machines))
    all_events = 0.0
    used = np.flatnonzero(machines > 0.0)
    for pool in range(len(machines)):
        events[pool], share = events_and_share(machines[pool], lost[pool], correlation)
        gone[pool] = share * nu[pool]
        all_events += events[pool]
    now = fixed_nu + nu.sum()
    for i in range(len(pool_of)):
        values[i] = np.inf
        if more[i] <= 0.0:
            continue
        own, size, total = pool_of[i], vcpus + more[i] * vcpus_of[i], now + more[i] * nu_of[i]
        whole = work_rate(job_vcpus, phi, total, size)
        taken, own_before = 0.0, 0.0
        for other in used:
            part = 1.0 - gone[other] / max(total, 1e-12)
            each = events[other] * (whole - work_rate(job_vcpus, phi, total * part, size * part))
            taken += each
            if other == own:
                own_before = each
        own_events, own_share = events_and_share(
            machines[own] + more[i], lost[own] + more[i] * loss[i], correlation
        )
        part = 1.0 - own_share * (nu[own] + more[i] * nu_of[i]) / max(total, 1e-12)
        own_taken = own_events * (whole - work_rate(job_vcpus, phi, total * part, size * part))
        useful = useful_work(
            whole,
            lambda_h,
            boot_h,
            all_events - events[own] + own_events,
            taken - own_before + own_taken,
        )
        if useful > 0.0:
            values[i] = (cost + more[i] * price[i]) / max(useful, 1e-300)


def cost_per_useful_work(terms: Terms, choices: Choices, counts: Floats) -> float:
    """(4.4) of a footprint: `counts` machines of each choice; infinite if no useful work is left."""
    return Footprint(terms, choices, counts).value


class Footprint:
    """A footprint that machines are added to, with the sums that its E consists of.

    counts: machines by choice. machines, lost, nu: by pool, their number, losses per hour and work per hour.
    """

    def __init__(self, terms: Terms, choices: Choices, counts: Floats | None = None) -> None:
        self.terms, self.choices = terms, choices
        pools = int(choices.pool.max()) + 1 if len(choices.pool) else 0
        self.machines, self.lost, self.nu = np.zeros(pools), np.zeros(pools), np.zeros(pools)
        self.vcpus, self.cost = float(terms.fixed_vcpus), float(terms.fixed)
        if counts is None:
            self.counts = np.zeros(len(choices.pool))
            return
        self.counts = counts.astype(np.float64)
        np.add.at(self.machines, choices.pool, self.counts)
        np.add.at(self.lost, choices.pool, self.counts * choices.loss)
        np.add.at(self.nu, choices.pool, self.counts * choices.nu)
        self.vcpus += float(self.counts @ choices.vcpus)
        self.cost += float(self.counts @ choices.price)

    @property
    def value(self) -> float:
        """E of the footprint."""
        return float(
            footprint_value(self.terms.figures, self.machines, self.lost, self.nu, self.vcpus, self.cost)
        )

    def values_with(self, more: Floats) -> Floats:
        """E of the footprint with `more` machines of one choice, for each choice."""
        values = np.empty(len(self.choices.pool))
        pools = (self.machines, self.lost, self.nu)
        values_with_more(self.terms.figures, self.choices.arrays, pools, self.vcpus, self.cost, more, values)
        return values
