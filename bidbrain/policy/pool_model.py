"""Expected cost per useful work of machines from several pools (equations 4.1 - 4.4 for a market without bids). Pure.

A machine is paid by the second and lost at its pool's rate; losses come in events that may take many at once. Per hour:

    C = reliable + sum_i n_i p_i
    W = F(V) (1 - lambda sum_i e_i) - boot sum_i e_i (F(V) - F(V - s_i))
    E = C / W

With several zones, C has the price of traffic too: each machine sends and receives the same, with all others in equal
shares, so machines of two zones a, b exchange m_a m_b / (N - 1) of what one moves, at the rate r_ab of their route:

    C += sum_(a < b) m_a m_b r_ab / (N - 1)

F: work per hour of a size (equation 4.3: phi beyond the job's own); e_i: events per hour of pool i; s_i: what an event
of it takes at once. So a pool that goes as a whole is weighed as a whole: where phi < 1, spreading pays.
Times in hours, prices in any one currency per hour, work in vCPU hours.

The equations are small functions of numbers; compiled loops apply them to a footprint (`Footprint`) and to every choice
that could be added. `pool_search` fills a footprint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.extending import register_jitable

from bidbrain.billing.traffic import Routes
from bidbrain.history.prices import Market

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Columns = tuple[Ints, Floats, Floats, Floats, Floats, Floats, Ints, Floats]  # of Choices
Pools = tuple[Floats, Floats, Floats, Floats]  # machines, losses and work per hour by pool, machines by place
Figures = tuple[float, float, float, float, float, float, float, float]
MOST_STOPPED = 0.95  # of the time: where evictions stop the job for longer, the model says nothing any more


@dataclass(frozen=True)
class Roads:
    """The places of a fleet. place: index of each choice's; rates: cost per hour by two places if a machine's whole
    traffic went between them; fixed: machines by place that are held anyway."""

    place: Ints
    rates: Floats
    fixed: Floats

    @staticmethod
    def between(
        routes: Routes, gb_per_h: float, markets: Sequence[Market], held_anyway: Mapping[Market, float]
    ) -> Roads:
        """Of choices in these markets, each machine moving gb_per_h. Raises UnknownRouteError."""
        own = [routes.place(market) for market in markets]
        places = sorted({*own, *(routes.place(market) for market in held_anyway)})
        number = {place: i for i, place in enumerate(places)}
        fixed = np.zeros(len(places))
        for market, machines in held_anyway.items():
            fixed[number[routes.place(market)]] += machines
        index = np.array([number[place] for place in own], np.int64)
        return Roads(index, gb_per_h * routes.matrix(places), fixed)


@dataclass(frozen=True)
class Choices:
    """The choices of a policy, an entry each: machines that are held already, or new ones of a pool.

    pool: index of its pool; most: machines there may be of it; price: per machine hour, with the share of a boot that a
    new one pays; nu: work per hour of one; loss: losses per machine hour. roads: where they are, and what traffic
    between those places costs (None: all are in one place).
    """

    pool: Ints
    most: Floats
    price: Floats
    nu: Floats
    vcpus: Floats
    loss: Floats
    roads: Roads | None = None

    @property
    def arrays(self) -> Columns:
        """All of them, in order, for the compiled loops."""
        if self.roads is None:
            place, rates = np.zeros(len(self.pool), np.int64), np.zeros((1, 1))
        else:
            place, rates = self.roads.place, self.roads.rates
        return self.pool, self.most, self.price, self.nu, self.vcpus, self.loss, place, rates


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


@register_jitable
def carried_with(at: Floats, rates: Floats, place: int, more: float) -> float:
    """The cost per hour of the traffic of `at` machines by place, and `more` of one of them."""
    total, number, own = 0.0, more, 0.0
    for one in range(len(at)):
        number += at[one]
        own += rates[place, one] * at[one]
        for other in range(one):
            total += rates[one, other] * at[one] * at[other]
    return (total + more * own) / max(1.0, number - 1.0)


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
    choices: Columns,
    pools: Pools,
    vcpus: float,
    cost: float,
    more: Floats,
    values: Floats,
) -> None:
    """Fill values[i] with E of the footprint with more[i] machines of choice i; infinite where more[i] is 0.

    pools: machines, losses and work per hour by pool, as for `footprint_value`, and machines by place. cost: without
    traffic.
    """
    job_vcpus, phi, boot_h, lambda_h, correlation, _, fixed_nu, _ = figures
    pool_of, _, price, nu_of, vcpus_of, loss, place, rates = choices
    machines, lost, nu, at = pools
    events, gone = np.empty(len(machines)), np.empty(len(machines))
    all_events = 0.0
    members, crossing = at.sum(), 0.0
    toward = np.zeros(len(at))
    for here in range(len(at)):
        for there in range(len(at)):
            toward[here] += rates[here, there] * at[there]
        crossing += 0.5 * toward[here] * at[here]
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
            traffic = (crossing + more[i] * toward[place[i]]) / max(1.0, members + more[i] - 1.0)
            values[i] = (cost + more[i] * price[i] + traffic) / max(useful, 1e-300)


class Footprint:
    """A footprint that machines are added to, with the sums that its E consists of.

    counts: machines by choice. machines, lost, nu: by pool, their number, losses per hour and work per hour. at:
    machines by place. cost: per hour, without traffic.
    """

    def __init__(self, terms: Terms, choices: Choices, counts: Floats | None = None) -> None:
        self.terms, self.choices = terms, choices
        pools = int(choices.pool.max()) + 1 if len(choices.pool) else 0
        self.machines, self.lost, self.nu = np.zeros(pools), np.zeros(pools), np.zeros(pools)
        self.at = np.zeros(1) if choices.roads is None else choices.roads.fixed.astype(np.float64)
        self.vcpus, self.cost = float(terms.fixed_vcpus), float(terms.fixed)
        if counts is None:
            self.counts = np.zeros(len(choices.pool))
            return
        self.counts = counts.astype(np.float64)
        np.add.at(self.machines, choices.pool, self.counts)
        np.add.at(self.lost, choices.pool, self.counts * choices.loss)
        np.add.at(self.nu, choices.pool, self.counts * choices.nu)
        np.add.at(self.at, choices.arrays[6], self.counts)
        self.vcpus += float(self.counts @ choices.vcpus)
        self.cost += float(self.counts @ choices.price)

    @property
    def pools(self) -> Pools:
        """The sums by pool and by place, for the compiled loops."""
        return self.machines, self.lost, self.nu, self.at

    @property
    def traffic(self) -> float:
        """The cost of its traffic per hour."""
        return float(carried_with(self.at, self.choices.arrays[7], 0, 0.0))

    def traffic_of_one_more(self) -> Floats:
        """The additional cost of traffic per hour with one more machine, for each choice."""
        place, rates = self.choices.arrays[6:]
        toward = rates @ self.at
        then: Floats = (float(self.at @ toward) / 2.0 + toward[place]) / max(1.0, float(self.at.sum()))
        return then - self.traffic

    @property
    def value(self) -> float:
        """E of the footprint (4.4); infinite if no useful work is left."""
        cost = self.cost + self.traffic
        return float(footprint_value(self.terms.figures, self.machines, self.lost, self.nu, self.vcpus, cost))

    def values_with(self, more: Floats) -> Floats:
        """E of the footprint with `more` machines of one choice, for each choice."""
        values = np.empty(len(self.choices.pool))
        figures, choices = self.terms.figures, self.choices.arrays
        values_with_more(figures, choices, self.pools, self.vcpus, self.cost, more, values)
        return values
