"""The simulator's kernel: runs one job against recorded prices event by event, compiled by numba.

`simulator` with the policy objects of `policy` defines what a simulation is; the kernel does the same step by step, and
a test compares their ledgers line by line. It sees arrays only, and compiles the plain functions of the equations and
bills. Long because it is one file: numba's cache notices changes of the file that it compiles, and of no other.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numba import njit

from bidbrain.billing import hourly_2016, per_second
from bidbrain.history.prices import NEVER_S, Ints
from bidbrain.money import HOUR_S, machine_seconds_micro_usd
from bidbrain.policy.footprint import (
    allocation_work,
    cost_per_work,
    expected_charge,
    renewal_index,
    scaling_efficiency,
    useful_time,
    useful_until,
)
from bidbrain.policy.registry import KernelPolicy
from bidbrain.risk.eviction import Floats
from bidbrain.risk.survival import RECENT_S, price_state

TICK_S = 120
PROTEUS_LEAD_S = 60

STANDARD, PROTEUS, RENEWAL, ORACLE = (int(policy) for policy in KernelPolicy)
HOURLY, PER_SECOND, PER_SECOND_PAID = 0, 1, 2
# numba compiles a function once more for each plain int or bool that it is called with, and not for those of numpy.
GRANT, CHARGE, REFUND, EVICT, TERMINATE, REQUEST, REFUSED, LEAVE, KEEP, END, WORK = cast(
    list[int], list(np.arange(11, dtype=np.int64))
)
NOTHING, NONE = cast(list[int], [np.int64(0), np.int64(-1)])
YES, NO = cast(list[bool], [np.True_, np.False_])
TAPE_COLUMNS = 8  # time, kind, allocation, market, vCPUs, price or bid, amount (bid of a grant, work), hour


class MarketArrays(NamedTuple):
    """Price steps of all markets end to end; market m has rows first[m] .. first[m + 1] - 1."""

    times: Ints
    prices: Ints
    first: Ints
    on_demand: Ints  # micro-dollars per machine hour
    vcpus: Ints  # per machine
    deltas: Ints  # micro-dollars
    history_end_s: int


class JobNumbers(NamedTuple):
    """One job and the engine that runs it, as numbers."""

    work: float  # vCPU seconds
    job_vcpus: int
    cap_vcpus: int
    slot_vcpus: int
    phi: float
    reference: int  # micro-dollars per hour of the reference machine: the unit of relative prices
    reliable_hourly: int  # micro-dollars per hour of all reliable machines
    reliable_price: int  # micro-dollars per hour of one of them
    reliable_vcpus: int
    reliable_nu: int
    boot_first_s: int
    boot_next_s: int
    lambda_s: int
    sigma_s: int
    grant_delay_s: int
    overhead: float
    checkpoint_s: int  # 0: nothing is lost at an eviction
    rules: int
    first_delta: int  # index of the least delta that may be bid
    requests: int  # at most so many per decision


class Tables(NamedTuple):
    """beta, median_s by (market, delta, minutes); the others by (market, state, delta)."""

    beta: Floats
    median_s: Floats
    thresholds: Ints
    evicted: Floats
    held_s: Floats
    useful_s: Floats


# Allocations are rows of one array (one array compiles in half the time of eleven). PHASE: see below; HOUR: number of
# its running hour, which began at HOUR_START_S at PRICE; DECIDE_S: when to decide on its next hour.
PHASE, NUMBER, MARKET, VCPUS, BID, GRANT_S, HOUR_START_S, HOUR, PRICE, EVICT_S, DECIDE_S = range(11)
SLOT_COLUMNS = 11
# Free, requested, held, held and leaving at its hour's end.
FREE, REQUESTED, HELD, LEAVING = 0, 1, 2, 3
# The results of a job.
COST, END_S, FREE_VCPU_S, HELD_VCPU_S, EVICTIONS, FINISHED, RELIABLE_COST, TAPE_ROWS = range(8)
RESULTS = 8


@njit(cache=True)
def _put(
    tape: Ints, rows: int, t: int, kind: int, slots: Ints, i: int, price: int, amount: int, hour: int
) -> int:
    if tape.shape[0] > 0:
        if rows >= tape.shape[0]:
            return rows + 1  # full: counted, and told at the end
        row = tape[rows]
        row[0], row[1], row[2], row[3] = t, kind, slots[i, NUMBER], slots[i, MARKET]
        row[4], row[5], row[6], row[7] = slots[i, VCPUS], price, amount, hour
        return rows + 1
    return rows


@njit(cache=True)
def _compact(slots: Ints, counters: Ints) -> None:
    """Drop what has ended; the rest stays in order of acquisition."""
    keep = 0
    for i in range(counters[2]):
        if slots[i, PHASE] == FREE:
            continue
        if keep < i:
            for column in range(SLOT_COLUMNS):
                slots[keep, column] = slots[i, column]
        keep += 1
    for i in range(keep, counters[2]):
        slots[i, PHASE] = FREE
    counters[2] = keep


@njit(cache=True)
def _step_at(markets: MarketArrays, low: int, high: int, t: int) -> int:
    """The last row of low .. high - 1 at or before t; low - 1 if there is none."""
    first = low
    while low < high:
        middle = (low + high) // 2
        if markets.times[middle] <= t:
            low = middle + 1
        else:
            high = middle
    return max(low, first) - 1


@njit(cache=True)
def _eviction_s(markets: MarketArrays, m: int, index: int, bid: int) -> int:
    for j in range(index + 1, markets.first[m + 1]):
        if markets.prices[j] > bid:
            return markets.times[j]
    return NEVER_S


@njit(cache=True)
def _recent_high(markets: MarketArrays, m: int, index: int, t: int) -> int:
    high = markets.prices[index]
    j = index
    while j > markets.first[m] and markets.times[j] > t - RECENT_S:
        j -= 1
        high = max(high, markets.prices[j])
    return high


@njit(cache=True)
def _held_delta(deltas: Ints, margin: int) -> int:
    d = 0
    while d + 1 < len(deltas) and deltas[d + 1] <= margin:
        d += 1
    return d


@njit(cache=True)
def _most_slots(kind: int, job: JobNumbers) -> int:
    """The most allocations that there can be at once: numba writes beyond an array without a word.

    Up to the cap are requested or held. The renewal policy lets all of them go as often as every HOUR_S - boot seconds,
    and each stays for the rest of its hour: a boot, and the delay of the grant in its place.
    """
    full = (job.cap_vcpus + job.slot_vcpus - 1) // job.slot_vcpus
    if kind in (STANDARD, PROTEUS):
        return full + 1
    leaving_s = job.boot_first_s + job.grant_delay_s
    return full * (2 + leaving_s // max(1, HOUR_S - job.boot_first_s)) + 1


@njit(cache=True)
def simulate_job(
    kind: int, start_s: int, job: JobNumbers, markets: MarketArrays, tables: Tables, tape: Ints, out: Ints
) -> bool:
    """Run one job of policy `kind` from `start_s`; fill `out` (COST ...), and `tape` if it has rows.

    Returns True if the tape was too short. Long because the state of the loop is a dozen local numbers: smaller
    functions would need them as arguments and results, which costs more lines than it saves, and time.
    """
    n = len(markets.first) - 1
    at = np.empty(n, np.int64)  # index of the step that holds now; below first[m]: no price yet
    for m in range(n):
        low, high = markets.first[m], markets.first[m + 1]
        at[m] = _step_at(markets, low, high, start_s)
    most = _most_slots(kind, job)
    slots = np.zeros((most, SLOT_COLUMNS), np.int64)
    terms = np.empty((most + 1, 4))
    counters = np.zeros(4, np.int64)  # numbers given, tape rows, slots in use, the first grant
    counters[3] = NEVER_S
    for i in range(RESULTS):
        out[i] = 0
    t = start_s
    done = 0.0
    running_s = 0
    pause_until = start_s
    tick_s = start_s
    if kind == STANDARD:
        lead = 0
    elif kind == PROTEUS:
        lead = PROTEUS_LEAD_S
    else:
        lead = job.boot_first_s + job.grant_delay_s
    finished = False
    while True:
        # 1. The events that are due now: evictions, ends of hours, grants.
        changed = t == start_s
        used = counters[2]
        evicted_now = False
        for i in range(used):
            if slots[i, PHASE] < HELD:
                continue
            spent = t - slots[i, HOUR_START_S]
            m = slots[i, MARKET]
            if slots[i, EVICT_S] == t:
                changed = True
                evicted_now = True
                _close(job, markets, slots, i, t, spent, YES, NO, tape, counters, out)
            elif spent == HOUR_S:
                if slots[i, PHASE] == LEAVING:
                    changed = True
                    _close(job, markets, slots, i, t, spent, NO, NO, tape, counters, out)
                else:
                    _next_hour(job, markets, slots, i, t, tape, counters, out)
                    slots[i, HOUR_START_S] = t
                    slots[i, HOUR] += 1
                    slots[i, DECIDE_S] = t + HOUR_S - lead if kind != STANDARD else NEVER_S
                    # The price of the new hour.
                    k = at[m]
                    slots[i, PRICE] = markets.prices[k]
                    _charge(job, markets, slots, i, t, tape, counters, out)
        if changed:
            _compact(slots, counters)
        if evicted_now:
            pause_until = max(pause_until, t + job.lambda_s)
            if job.checkpoint_s > 0:
                running_s -= running_s % job.checkpoint_s
                done = running_s * (job.job_vcpus * (1.0 - job.overhead))
            counters[1] = _put(tape, counters[1], t, WORK, slots, NOTHING, NOTHING, int(done), NOTHING)
        for i in range(counters[2]):
            if slots[i, PHASE] == REQUESTED and slots[i, GRANT_S] == t:
                changed = True
                _grant(kind, job, markets, slots, i, t, at, lead, tape, counters, out)
                if slots[i, PHASE] == HELD:
                    pause_until = max(pause_until, t + job.sigma_s)
        # 2. Decide.
        if changed:
            _compact(slots, counters)
        due = changed or (t == tick_s)
        used = counters[2]
        for i in range(used):
            if slots[i, PHASE] == HELD and slots[i, DECIDE_S] == t:
                due = True
        if t == tick_s:
            tick_s += TICK_S
        if due:
            before = counters[0]
            if kind == STANDARD:
                _decide_standard(job, markets, slots, t, at, tape, counters)
            elif kind == PROTEUS:
                _decide_proteus(job, markets, tables, slots, t, at, tape, counters, terms)
            else:
                _decide_renewal(kind, job, markets, tables, slots, t, at, tape, counters)
            if counters[0] > before and job.grant_delay_s == 0:
                for i in range(counters[2]):
                    if slots[i, PHASE] == REQUESTED and slots[i, GRANT_S] == t:
                        _grant(kind, job, markets, slots, i, t, at, lead, tape, counters, out)
                        if slots[i, PHASE] == HELD:
                            pause_until = max(pause_until, t + job.sigma_s)
        # 3. The next instant at which something is due.
        used = counters[2]
        then = markets.history_end_s
        room = job.cap_vcpus
        for i in range(used):
            phase = slots[i, PHASE]
            if phase == REQUESTED:
                then = min(then, slots[i, GRANT_S])
            else:
                then = min(then, slots[i, EVICT_S], slots[i, HOUR_START_S] + HOUR_S)
                if slots[i, DECIDE_S] > t and phase == HELD:
                    then = min(then, slots[i, DECIDE_S])
            if phase != LEAVING or kind == PROTEUS:
                room -= slots[i, VCPUS]
        if kind == STANDARD:
            if room == job.cap_vcpus:
                # Wait for the next change of any price.
                for m in range(n):
                    if at[m] + 1 < markets.first[m + 1]:
                        then = min(then, markets.times[at[m] + 1])
                tick_s = then
            else:
                tick_s = NEVER_S
        elif room > 0:
            while tick_s <= t:
                tick_s += TICK_S
            then = min(then, tick_s)
        # 4. Work until then, in stretches of one rate.
        a = t
        while a < then:
            b = then
            vcpus = 0
            if a < pause_until:
                b = min(b, pause_until)
            for i in range(used):
                if slots[i, PHASE] >= HELD:
                    is_first = slots[i, GRANT_S] == counters[3]
                    ready = slots[i, GRANT_S] + (job.boot_first_s if is_first else job.boot_next_s)
                    if ready <= a:
                        vcpus += slots[i, VCPUS]
                    elif ready < b:
                        b = ready
            if a < pause_until:
                vcpus = 0
            if vcpus > 0:
                rate = vcpus * scaling_efficiency(vcpus, job.job_vcpus, job.phi) * (1.0 - job.overhead)
                needed = np.ceil((job.work - done) / rate)
                if needed <= b - a:
                    b = a + int(needed)
                    finished = True
                done += rate * (b - a)
                running_s += b - a
            a = b
            if finished:
                break
        # Ticks that nothing waits for stay on their grid.
        if kind != STANDARD and room <= 0 and tick_s < a:
            tick_s += (a - tick_s + TICK_S - 1) // TICK_S * TICK_S
        t = a
        for m in range(n):
            while at[m] + 1 < markets.first[m + 1] and markets.times[at[m] + 1] <= t:
                at[m] += 1
        if finished or t >= markets.history_end_s:
            break
    # The end: open hours are charged for what was used.
    for i in range(counters[2]):
        if slots[i, PHASE] >= HELD:
            _close(job, markets, slots, i, t, t - slots[i, HOUR_START_S], NO, YES, tape, counters, out)
    counters[1] = _put(tape, counters[1], t, WORK, slots, NOTHING, NOTHING, int(done), NOTHING)
    reliable = machine_seconds_micro_usd(job.reliable_price, job.reliable_vcpus, job.reliable_nu, t - start_s)
    out[COST] += reliable
    out[RELIABLE_COST] = reliable
    out[END_S] = t
    out[FINISHED] = 1 if finished else 0
    out[TAPE_ROWS] = counters[1]
    return 0 < tape.shape[0] < counters[1]


@njit(cache=True)
def _charge(
    job: JobNumbers,
    markets: MarketArrays,
    slots: Ints,
    i: int,
    t: int,
    tape: Ints,
    counters: Ints,
    out: Ints,
) -> None:
    """The charge that stands at an hour's start."""
    if job.rules == HOURLY:
        amount = hourly_2016.charge_at_start(
            slots[i, PRICE], slots[i, VCPUS], markets.vcpus[slots[i, MARKET]]
        )
        if amount > 0:
            out[COST] += amount
            counters[1] = _put(
                tape, counters[1], t, CHARGE, slots, i, slots[i, PRICE], amount, slots[i, HOUR]
            )


@njit(cache=True)
def _next_hour(
    job: JobNumbers,
    markets: MarketArrays,
    slots: Ints,
    i: int,
    t: int,
    tape: Ints,
    counters: Ints,
    out: Ints,
) -> None:
    """Settle a finished hour of an allocation that goes on."""
    out[HELD_VCPU_S] += slots[i, VCPUS] * HOUR_S
    if job.rules != HOURLY:
        nu = markets.vcpus[slots[i, MARKET]]
        amount = per_second.charge_at_close(slots[i, PRICE], slots[i, VCPUS], nu, HOUR_S, slots[i, HOUR])
        if amount > 0:
            out[COST] += amount
            counters[1] = _put(
                tape, counters[1], t, CHARGE, slots, i, slots[i, PRICE], amount, slots[i, HOUR]
            )


@njit(cache=True)
def _close(
    job: JobNumbers,
    markets: MarketArrays,
    slots: Ints,
    i: int,
    t: int,
    used_s: int,
    evicted: bool,
    job_end: bool,
    tape: Ints,
    counters: Ints,
    out: Ints,
) -> None:
    """End an allocation `used_s` into its hour and settle that hour."""
    price, vcpus, nu, hour = slots[i, PRICE], slots[i, VCPUS], markets.vcpus[slots[i, MARKET]], slots[i, HOUR]
    out[HELD_VCPU_S] += vcpus * used_s
    if evicted:
        out[EVICTIONS] += 1
        counters[1] = _put(tape, counters[1], t, EVICT, slots, i, NOTHING, NOTHING, hour)
    else:
        counters[1] = _put(
            tape, counters[1], t, END if job_end else TERMINATE, slots, i, NOTHING, NOTHING, hour
        )
    if job.rules == HOURLY:
        refund = 0
        if evicted:
            refund = hourly_2016.refund_at_eviction(price, vcpus, nu, used_s)
            if used_s < HOUR_S:
                out[FREE_VCPU_S] += vcpus * used_s
        elif job_end:
            refund = hourly_2016.refund_at_job_end(price, vcpus, nu, used_s)
        if refund > 0:
            out[COST] -= refund
            counters[1] = _put(tape, counters[1], t, REFUND, slots, i, price, -refund, hour)
    else:
        if evicted and job.rules == PER_SECOND:
            amount = per_second.charge_at_eviction(price, vcpus, nu, used_s, hour)
            if hour == 0 and used_s < HOUR_S:
                out[FREE_VCPU_S] += vcpus * used_s
        else:
            amount = per_second.charge_at_close(price, vcpus, nu, used_s, hour)
        if amount > 0:
            out[COST] += amount
            counters[1] = _put(tape, counters[1], t, CHARGE, slots, i, price, amount, hour)
    slots[i, PHASE] = FREE


@njit(cache=True)
def _grant(
    kind: int,
    job: JobNumbers,
    markets: MarketArrays,
    slots: Ints,
    i: int,
    t: int,
    at: Ints,
    lead: int,
    tape: Ints,
    counters: Ints,
    out: Ints,
) -> None:
    """A request comes due: granted if the price is at or below its bid now, else gone."""
    m = slots[i, MARKET]
    price = markets.prices[at[m]]
    if price > slots[i, BID]:
        counters[1] = _put(tape, counters[1], t, REFUSED, slots, i, price, NOTHING, NOTHING)
        slots[i, PHASE] = FREE
        return
    counters[3] = min(counters[3], t)
    slots[i, PHASE] = HELD
    slots[i, HOUR_START_S] = t
    slots[i, HOUR] = 0
    slots[i, PRICE] = price
    slots[i, EVICT_S] = _eviction_s(markets, m, at[m], slots[i, BID])
    slots[i, DECIDE_S] = t + HOUR_S - lead if kind != STANDARD else NEVER_S
    counters[1] = _put(tape, counters[1], t, GRANT, slots, i, price, slots[i, BID], NOTHING)
    _charge(job, markets, slots, i, t, tape, counters, out)


@njit(cache=True)
def _request(
    job: JobNumbers, slots: Ints, m: int, vcpus: int, bid: int, t: int, tape: Ints, counters: Ints
) -> None:
    i = counters[2]
    counters[2] += 1
    slots[i, PHASE] = REQUESTED
    slots[i, NUMBER] = counters[0]
    counters[0] += 1
    slots[i, MARKET] = m
    slots[i, VCPUS] = vcpus
    slots[i, BID] = bid
    slots[i, GRANT_S] = t + job.grant_delay_s
    slots[i, DECIDE_S] = NEVER_S
    counters[1] = _put(tape, counters[1], t, REQUEST, slots, i, bid, NOTHING, NOTHING)


@njit(cache=True)
def _decide_standard(
    job: JobNumbers, markets: MarketArrays, slots: Ints, t: int, at: Ints, tape: Ints, counters: Ints
) -> None:
    """All vCPUs in the market of least price per vCPU, bid = on-demand; wait if none is at or below on-demand."""
    if counters[2] > 0:
        return
    best = NONE
    for m in range(len(markets.first) - 1):
        if at[m] < markets.first[m] or markets.prices[at[m]] > markets.on_demand[m]:
            continue
        # price / vCPUs, compared without division
        if best < 0 or (
            markets.prices[at[m]] * markets.vcpus[best] < markets.prices[at[best]] * markets.vcpus[m]
        ):
            best = m
    if best >= 0:
        _request(job, slots, best, job.job_vcpus, markets.on_demand[best], t, tape, counters)


@njit(cache=True)
def _decide_proteus(
    job: JobNumbers,
    markets: MarketArrays,
    tables: Tables,
    slots: Ints,
    t: int,
    at: Ints,
    tape: Ints,
    counters: Ints,
    terms: Floats,
) -> None:
    """Renew or let go what ends, then one request if it lowers the cost per work (equations 4.1 - 4.4)."""
    used = counters[2]
    for i in range(used):
        if slots[i, PHASE] == HELD and slots[i, DECIDE_S] == t:
            keep = _held_cost(job, markets, tables, slots, used, t, at, i, YES, terms)
            drop = _held_cost(job, markets, tables, slots, used, t, at, i, NO, terms)
            if drop < keep:
                slots[i, PHASE] = LEAVING
                counters[1] = _put(tape, counters[1], t, LEAVE, slots, i, NOTHING, NOTHING, slots[i, HOUR])
            else:
                counters[1] = _put(tape, counters[1], t, KEEP, slots, i, NOTHING, NOTHING, slots[i, HOUR])
    room = job.cap_vcpus
    for i in range(used):
        room -= slots[i, VCPUS]
    size = min(room, job.slot_vcpus)
    if size <= 0:
        return
    best = _held_cost(job, markets, tables, slots, used, t, at, NONE, YES, terms)
    held, cost, free, vcpus = int(terms[0, 0]), terms[0, 1], terms[0, 2], terms[0, 3]
    efficiency = scaling_efficiency(vcpus + size, job.job_vcpus, job.phi)
    lambda_h = job.lambda_s / HOUR_S
    sigma_h = job.sigma_s / HOUR_S
    boot_h = (job.boot_first_s + job.grant_delay_s) / HOUR_S
    minutes = HOUR_S // 60
    best_m, best_d = NONE, NOTHING
    for m in range(len(markets.first) - 1):
        if at[m] < markets.first[m] or markets.prices[at[m]] > markets.on_demand[m]:
            continue
        price = markets.prices[at[m]] / job.reference
        nu = markets.vcpus[m]
        machines = size / nu
        for d in range(job.first_delta, len(markets.deltas)):
            beta = tables.beta[m, d, minutes]
            all_free = free * (1.0 - beta)
            work = 0.0
            for h in range(1, held + 1):
                useful = useful_time(terms[h, 0], all_free, lambda_h, sigma_h)
                work += allocation_work(terms[h, 1], useful, terms[h, 2])
            omega = useful_until(beta, 1.0, tables.median_s[m, d, minutes] / HOUR_S) - boot_h
            work += allocation_work(machines, useful_time(omega, all_free, lambda_h, sigma_h), nu)
            value = cost_per_work(cost + expected_charge(beta, price, machines, 1.0), efficiency * work)
            if value < best:
                best, best_m, best_d = value, m, d
    if best_m >= 0:
        bid = markets.prices[at[best_m]] + markets.deltas[best_d]
        _request(job, slots, best_m, size, bid, t, tape, counters)


@njit(cache=True)
def _held_cost(
    job: JobNumbers,
    markets: MarketArrays,
    tables: Tables,
    slots: Ints,
    used: int,
    t: int,
    at: Ints,
    ending: int,
    renew: bool,
    terms: Floats,
) -> float:
    """E of the machines held or requested, with `ending` renewed or dropped.

    Fills terms[0] with (allocations, cost, prod (1 - beta), vCPUs) and terms[1 ...] with (omega, machines, nu) of each.
    """
    cost = job.reliable_hourly / job.reference
    free = 1.0
    vcpus = 0
    held = 0
    for i in range(used):
        if i == ending and not renew:
            continue
        m = slots[i, MARKET]
        now = markets.prices[at[m]]
        fresh = i == ending or slots[i, PHASE] == REQUESTED
        left_s = HOUR_S if fresh else slots[i, HOUR_START_S] + HOUR_S - t
        price = now if fresh else slots[i, PRICE]
        d = _held_delta(markets.deltas, slots[i, BID] - now)
        beta = tables.beta[m, d, left_s // 60]
        machines = slots[i, VCPUS] / markets.vcpus[m]
        cost += expected_charge(beta, price / job.reference, machines, left_s / HOUR_S)
        free *= 1.0 - beta
        vcpus += slots[i, VCPUS]
        omega = useful_until(beta, left_s / HOUR_S, tables.median_s[m, d, left_s // 60] / HOUR_S)
        if i != ending:
            omega -= max(0, slots[i, GRANT_S] + job.boot_first_s - t) / HOUR_S
        held += 1
        terms[held, 0], terms[held, 1], terms[held, 2] = omega, machines, markets.vcpus[m]
    terms[0, 0], terms[0, 1], terms[0, 2], terms[0, 3] = held, cost, free, vcpus
    work = 0.0
    lambda_h = job.lambda_s / HOUR_S
    sigma_h = job.sigma_s / HOUR_S if ending >= 0 and not renew else 0.0
    for h in range(1, held + 1):
        work += allocation_work(terms[h, 1], useful_time(terms[h, 0], free, lambda_h, sigma_h), terms[h, 2])
    return cost_per_work(cost, scaling_efficiency(vcpus, job.job_vcpus, job.phi) * work)


@njit(cache=True)
def _best_fresh(
    kind: int, job: JobNumbers, markets: MarketArrays, tables: Tables, t: int, at: Ints
) -> tuple[float, int, int]:
    """The least renewal index over markets and deltas for a fresh slot: (index, market, bid)."""
    best, best_m, best_bid = np.inf, NONE, NOTHING
    share = job.reliable_hourly / job.reference * job.slot_vcpus / job.cap_vcpus
    lambda_share = job.lambda_s / HOUR_S * job.cap_vcpus / job.slot_vcpus
    for m in range(len(markets.first) - 1):
        if at[m] < markets.first[m] or markets.prices[at[m]] > markets.on_demand[m]:
            continue
        price = markets.prices[at[m]]
        hour_cost = price / job.reference * (job.slot_vcpus / markets.vcpus[m])
        if kind == ORACLE:
            j = at[m] + 1
            for d in range(job.first_delta, len(markets.deltas)):
                bid = price + markets.deltas[d]
                while j < markets.first[m + 1] and markets.times[j] - t < HOUR_S and markets.prices[j] <= bid:
                    j += 1
                over = j == markets.first[m + 1] or markets.times[j] - t >= HOUR_S
                held = HOUR_S if over else markets.times[j] - t
                value = renewal_index(
                    1.0 if over else 0.0,
                    hour_cost,
                    share,
                    held / HOUR_S,
                    max(0, held - job.boot_first_s) / HOUR_S,
                    lambda_share,
                )
                if value < best:
                    best, best_m, best_bid = value, m, bid
                if over:
                    break  # a higher bid changes nothing
            continue
        state = price_state(
            price, _recent_high(markets, m, at[m], t), tables.thresholds[m, 0], tables.thresholds[m, 1]
        )
        for d in range(job.first_delta, len(markets.deltas)):
            value = renewal_index(
                1.0 - tables.evicted[m, state, d],
                hour_cost,
                share,
                tables.held_s[m, state, d] / HOUR_S,
                tables.useful_s[m, state, d] / HOUR_S,
                lambda_share,
            )
            if value < best:
                best, best_m, best_bid = value, m, price + markets.deltas[d]
    return best, best_m, best_bid


@njit(cache=True)
def _kept_index(
    kind: int, job: JobNumbers, markets: MarketArrays, tables: Tables, slots: Ints, i: int, t: int, at: Ints
) -> float:
    """The renewal index of the allocation's next hour, as it stands."""
    m = slots[i, MARKET]
    price = markets.prices[at[m]]
    share = job.reliable_hourly / job.reference * slots[i, VCPUS] / job.cap_vcpus
    lambda_share = job.lambda_s / HOUR_S * job.cap_vcpus / slots[i, VCPUS]
    hour_cost = price / job.reference * (slots[i, VCPUS] / markets.vcpus[m])
    if kind == ORACLE:
        begins = slots[i, HOUR_START_S] + HOUR_S
        held = min(slots[i, EVICT_S] - begins, HOUR_S)
        if held <= 0:
            return np.inf
        survive = 1.0 if held == HOUR_S else 0.0
        return renewal_index(survive, hour_cost, share, held / HOUR_S, held / HOUR_S, lambda_share)
    state = price_state(
        price, _recent_high(markets, m, at[m], t), tables.thresholds[m, 0], tables.thresholds[m, 1]
    )
    d = _held_delta(markets.deltas, slots[i, BID] - price)
    held_h = tables.held_s[m, state, d] / HOUR_S
    return renewal_index(1.0 - tables.evicted[m, state, d], hour_cost, share, held_h, held_h, lambda_share)


@njit(cache=True)
def _decide_renewal(
    kind: int,
    job: JobNumbers,
    markets: MarketArrays,
    tables: Tables,
    slots: Ints,
    t: int,
    at: Ints,
    tape: Ints,
    counters: Ints,
) -> None:
    """At an hour's end the better of staying and a fresh bid; then fill the room, one slot per request."""
    used = counters[2]
    room = job.cap_vcpus
    for i in range(used):
        if slots[i, PHASE] == REQUESTED or slots[i, PHASE] == HELD:
            room -= slots[i, VCPUS]
    fresh, market, bid = np.inf, NONE, NOTHING
    known = False
    for i in range(used):
        if slots[i, PHASE] == HELD and slots[i, DECIDE_S] == t:
            if not known:
                fresh, market, bid = _best_fresh(kind, job, markets, tables, t, at)
                known = True
            if fresh < _kept_index(kind, job, markets, tables, slots, i, t, at):
                slots[i, PHASE] = LEAVING
                room += slots[i, VCPUS]
                counters[1] = _put(tape, counters[1], t, LEAVE, slots, i, NOTHING, NOTHING, slots[i, HOUR])
            else:
                counters[1] = _put(tape, counters[1], t, KEEP, slots, i, NOTHING, NOTHING, slots[i, HOUR])
    if room <= 0:
        return
    if not known:
        fresh, market, bid = _best_fresh(kind, job, markets, tables, t, at)
    if market < 0:
        return
    for _ in range(job.requests):
        size = min(room, job.slot_vcpus)
        if size <= 0:
            break
        _request(job, slots, market, size, bid, t, tape, counters)
        room -= size
