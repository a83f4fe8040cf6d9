"""The plain form of `pool_model` and `pool_search`: every E of a footprint and the search, with numpy alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bidbrain.policy.pool_model import Choices, Terms

Floats = npt.NDArray[np.float64]
MOST_EXCHANGES = 12
MOST_WEIGHED = 6  # choices that an exchange may give up, the dearest
LEAST_GAIN = 1e-6  # of E: below it an exchange is noise
MOST_STOPPED = 0.95


def work_rate(terms: Terms, nu: Floats | float, vcpus: Floats | float) -> Floats:
    """F of (4.3): work per hour of machines worth `nu`, of nominal size `vcpus`."""
    size = np.maximum(vcpus, 1e-12)
    beyond = (terms.job_vcpus + terms.phi * (size - terms.job_vcpus)) / size
    return np.where(size <= terms.job_vcpus, 1.0, beyond) * nu


def taken_at_once(machines: Floats | float, correlation: float) -> Floats:
    """Machines that an event of a pool takes: one, and of those beside it the share that goes with it."""
    return 1.0 + correlation * np.maximum(0.0, np.asarray(machines) - 1.0)


class Footprint:
    """A footprint that machines are added to, with the sums that its E consists of."""

    def __init__(self, terms: Terms, choices: Choices, counts: Floats | None = None) -> None:
        self.terms, self.choices = terms, choices
        pools = int(choices.pool.max()) + 1 if len(choices.pool) else 0
        self.counts = np.zeros(len(choices.pool)) if counts is None else counts.astype(np.float64)
        self._machines, self._lost, self._nu = np.zeros(pools), np.zeros(pools), np.zeros(pools)
        np.add.at(self._machines, choices.pool, self.counts)
        np.add.at(self._lost, choices.pool, self.counts * choices.loss)
        np.add.at(self._nu, choices.pool, self.counts * choices.nu)
        self._place, self._rates = choices.arrays[6:]
        self._at = np.zeros(1) if choices.roads is None else choices.roads.fixed.copy()
        np.add.at(self._at, self._place, self.counts)
        self.vcpus = terms.fixed_vcpus + sum((self.counts * choices.vcpus).tolist())
        self.cost = terms.fixed + sum((self.counts * choices.price).tolist())

    def _per_pool(self, machines: Floats, lost: Floats, nu: Floats) -> tuple[Floats, Floats]:
        """(events per hour, share of the pool's machines that an event takes)."""
        taken = taken_at_once(machines, self.terms.correlation)
        there = np.maximum(machines, 1e-12)
        return lost / taken, np.where(machines > 0.0, np.minimum(1.0, taken / there), 0.0)

    def traffic_with(self, place: Floats | int, more: Floats | float) -> Floats:
        """Per hour, with `more` machines of a place."""
        between = float(self._at @ self._rates @ self._at) / 2.0
        toward = (self._rates @ self._at)[place]
        return (between + more * toward) / np.maximum(1.0, self._at.sum() + more - 1.0)

    @property
    def value(self) -> float:
        """E of the footprint."""
        events, share = self._per_pool(self._machines, self._lost, self._nu)
        nu = self.terms.fixed_nu + float(self._nu.sum())
        whole = float(work_rate(self.terms, nu, self.vcpus))
        part = 1.0 - share * self._nu / max(nu, 1e-12)
        left = work_rate(self.terms, nu * part, self.vcpus * part)
        stopped = min(MOST_STOPPED, self.terms.lambda_h * float(events.sum()))
        useful = whole * (1.0 - stopped) - self.terms.boot_h * sum((events * (whole - left)).tolist())
        return (self.cost + float(self.traffic_with(0, 0.0))) / useful if useful > 0.0 else float("inf")

    def values_with(self, more: Floats) -> Floats:
        """E of the footprint with `more` machines of one choice, for each choice."""
        terms, choices = self.terms, self.choices
        pool = choices.pool
        events, share = self._per_pool(self._machines, self._lost, self._nu)
        nu, vcpus = terms.fixed_nu + float(self._nu.sum()), self.vcpus
        size, total = vcpus + more * choices.vcpus, nu + more * choices.nu
        machines, lost = self._machines[pool] + more, self._lost[pool] + more * choices.loss
        own_nu = self._nu[pool] + more * choices.nu
        own_events, own_share = self._per_pool(machines, lost, own_nu)
        whole = work_rate(terms, total, size)
        used = np.flatnonzero(self._machines > 0.0)
        # What an event of another pool takes, with one choice more: a row per pool that is held, a column per choice.
        gone = (share[used] * self._nu[used])[:, None] / np.maximum(total, 1e-12)
        left = work_rate(terms, total * (1.0 - gone), size * (1.0 - gone))
        taken = events[used][:, None] * (whole - left)
        others = taken.sum(axis=0) - np.where(used[:, None] == pool, taken, 0.0).sum(axis=0)
        own_part = 1.0 - own_share * own_nu / np.maximum(total, 1e-12)
        own_taken = own_events * (whole - work_rate(terms, total * own_part, size * own_part))
        sum_events = float(events.sum()) - events[pool] + own_events
        stopped = np.minimum(MOST_STOPPED, terms.lambda_h * sum_events)
        useful = whole * (1.0 - stopped) - terms.boot_h * (others + own_taken)
        cost = self.cost + more * choices.price + self.traffic_with(self._place, more)
        return np.where((more > 0.0) & (useful > 0.0), cost / np.maximum(useful, 1e-300), np.inf)

    def add(self, choice: int, more: float) -> None:
        """Hold so many machines more of a choice."""
        choices, pool = self.choices, int(self.choices.pool[choice])
        self.counts[choice] += more
        self._machines[pool] += more
        self._lost[pool] += more * choices.loss[choice]
        self._nu[pool] += more * choices.nu[choice]
        self._at[self._place[choice]] += more
        self.vcpus += more * float(choices.vcpus[choice])
        self.cost += more * float(choices.price[choice])


def fill(footprint: Footprint, size_vcpus: float, cap_vcpus: float, step_vcpus: float, worth: float) -> None:
    """Add the choices of least E, step by step: up to `size_vcpus`; from there to `cap_vcpus` while it pays.

    It pays if E falls, or if the work that is added costs at most `worth` (what it would cost otherwise). Then choices
    are exchanged while that lowers E.
    """
    _grow(footprint, size_vcpus, cap_vcpus, step_vcpus, worth)
    if not exchange(footprint, step_vcpus):
        return
    _grow(footprint, size_vcpus, cap_vcpus, step_vcpus, worth)


def exchange(footprint: Footprint, step_vcpus: float) -> bool:
    """Give machines of one choice up for as many vCPUs of another while that lowers E; whether anything was changed."""
    changed = False
    for _ in range(MOST_EXCHANGES):
        found = _best_exchange(footprint, step_vcpus)
        if found is None:
            return changed
        choice, less, other, more = found
        footprint.add(choice, -less)
        footprint.add(other, more)
        changed = True
    return changed


def _best_exchange(footprint: Footprint, step_vcpus: float) -> tuple[int, float, int, float] | None:
    """(choice, machines less, other choice, machines more) that lowers E most; None: nothing does."""
    choices, terms, now = footprint.choices, footprint.terms, footprint.value
    cost_of_one = float(footprint.traffic_with(0, 0.0)) - footprint.traffic_with(choices.arrays[6], -1.0)
    alone = (choices.price + cost_of_one) / (choices.nu * np.maximum(1.0 - choices.loss * terms.boot_h, 1e-3))
    used = np.flatnonzero(footprint.counts > 0.0)
    dearest = used[np.argsort(-alone[used], kind="stable")][:MOST_WEIGHED]
    best, least = None, now * (1.0 - LEAST_GAIN)
    for choice in dearest.tolist():
        held, vcpus = float(footprint.counts[choice]), float(choices.vcpus[choice])
        for less in sorted({min(max(1.0, step_vcpus // vcpus), held), held}):
            freed = less * vcpus
            footprint.add(choice, -less)
            more = np.minimum(np.floor(freed / choices.vcpus + 1e-9), choices.most - footprint.counts)
            more[(more * choices.vcpus < freed - 1e-9) | (np.arange(len(more)) == choice)] = 0.0
            values = footprint.values_with(np.maximum(0.0, more))
            footprint.add(choice, less)
            other = int(values.argmin())
            if values[other] < least:
                least, best = float(values[other]), (choice, less, other, float(more[other]))
    return best


def _grow(footprint: Footprint, size_vcpus: float, cap_vcpus: float, step_vcpus: float, worth: float) -> None:
    choices = footprint.choices
    while footprint.vcpus < cap_vcpus - 1e-9:
        needed = footprint.vcpus < size_vcpus - 1e-9
        room = (size_vcpus if needed else cap_vcpus) - footprint.vcpus
        step = np.ceil(min(step_vcpus, room) / choices.vcpus - 1e-9)
        fits = np.minimum(step, np.floor((cap_vcpus - footprint.vcpus) / choices.vcpus + 1e-9))
        more = np.minimum(fits, choices.most - footprint.counts)
        values = footprint.values_with(np.maximum(0.0, more))
        if not len(values) or not np.isfinite(best := float(values.min())):
            return
        choice = int(values.argmin())
        if not needed and best >= footprint.value:
            now, cost = footprint.value, footprint.cost + float(footprint.traffic_with(0, 0.0))
            added = footprint.cost + float(more[choice] * choices.price[choice])
            added += float(footprint.traffic_with(int(choices.arrays[6][choice]), float(more[choice])))
            work, then = cost / now, added / best
            if then <= work or (added - cost) / (then - work) > worth:
                return
        footprint.add(choice, float(more[choice]))
