"""Yardstick: the least cost of paid hours alone when the future is known, by a linear program.

Slots are fluid (any fraction), hours are bought at the price of their beginning and paid in full, no refunds; a new
machine loses its boot, one that goes on does not; at most the cap at any time; the job's last hours are charged
for what was used; it ends within the on-demand job's time T and pays its reliable machines until then.

Time is cut into cells of `CELL_S`. The schedule starts hours at the beginnings of cells only: feasible, an upper bound.
The bound lets an hour begin anywhere in its cell at the least price of the cell, useful from the cell's beginning. The
cap still holds for it (just before a cell ends, what began in the twelve cells up to it is all on), and an hour
that the job's end cuts short is a fraction of its column: no schedule can be cheaper. Ends between two candidates of T
are covered by the later one's freedom with the earlier one's bill for the reliable machines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_matrix, vstack

from bidbrain.history.prices import Steps
from bidbrain.money import HOUR_S
from bidbrain.setting import Setting
from bidbrain.simulate.simulator import Outcome

PAID_HOURS_BOUND = "paid_hours_bound"
PAID_HOURS_SCHEDULE = "paid_hours_schedule"
CELL_S = 300
HOUR_CELLS = HOUR_S // CELL_S
END_SHARES = (0.67, 0.68, 0.69, 0.7, 0.71, 0.72, 0.75, 0.8, 0.9, 1.0)
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cells:
    """Prices of vCPU hours by (market, cell), micro-dollars; inf where no hour may begin."""

    first: Floats  # at the cell's beginning
    least: Floats  # anywhere in the cell


def cells_of(setting: Setting, start_s: int, end_s: int) -> Cells:
    """Prices per vCPU hour over [start, end), cut into cells."""
    count = -(-(end_s - start_s) // CELL_S)
    shape = (len(setting.listings), count)
    first, least = np.full(shape, np.inf), np.full(shape, np.inf)
    for row, listing in enumerate(setting.listings):
        steps = setting.history.steps[listing.market]
        for cell in range(count):
            at_s = start_s + cell * CELL_S
            price = steps.price_at(at_s)
            if price is not None:
                first[row, cell] = price / listing.vcpus
            low = _least(steps, at_s, at_s + CELL_S)
            if low is not None:
                least[row, cell] = low / listing.vcpus
    return Cells(first, least)


def _least(steps: Steps, start_s: int, end_s: int) -> int | None:
    first, last = max(0, steps.index_at(start_s)), steps.index_at(end_s - 1)
    return None if last < 0 else int(steps.prices[first : last + 1].min())


def _solve(prices: Floats, setting: Setting, length_s: int) -> float:
    """Least cost (micro-dollars) of the work within `length_s`; inf if it cannot be done.

    Variables: x[m, c] vCPUs whose hour begins in cell c, y[m, c] those of them that are new.
    """
    markets, cells = prices.shape[0], -(-length_s // CELL_S)
    prices = prices[:, :cells]
    begin_s = np.arange(cells) * CELL_S
    useful_s = np.clip(length_s - begin_s, 0, HOUR_S)
    allowed = np.isfinite(prices)
    size = markets * cells
    cost = np.concatenate([(np.where(allowed, prices, 0.0) * useful_s / HOUR_S).ravel(), np.zeros(size)])
    boot_s = setting.job.engine.boot_s
    work = np.concatenate([-np.tile(useful_s, markets), np.full(size, boot_s)]).astype(float)
    column = np.arange(size).reshape(markets, cells)
    # x[c] - x[c - 12] - y[c] <= 0: what begins goes on from an hour ago, or is new.
    ones = np.ones(size)
    later, earlier = column[:, HOUR_CELLS:].ravel(), column[:, :-HOUR_CELLS].ravel()
    chain = coo_matrix(
        (
            np.concatenate([ones, -ones[: len(later)], -ones]),
            (
                np.concatenate([column.ravel(), later, column.ravel()]),
                np.concatenate([column.ravel(), earlier, size + column.ravel()]),
            ),
        ),
        shape=(size, 2 * size),
    )
    # The cap: what is on at the very end of cell c began in cells c - 11 .. c, wherever in them.
    rows, columns = [], []
    for cell in range(cells):
        on = column[:, max(0, cell - HOUR_CELLS + 1) : cell + 1].ravel()
        rows.append(np.full(len(on), cell))
        columns.append(on)
    row_index, column_index = np.concatenate(rows), np.concatenate(columns)
    capacity = coo_matrix((np.ones(len(row_index)), (row_index, column_index)), shape=(cells, 2 * size))
    solution = linprog(
        cost,
        A_ub=vstack([chain, capacity, coo_matrix(work[None, :])]).tocsr(),
        b_ub=np.concatenate(
            [np.zeros(size), np.full(cells, setting.job.cap_vcpus), [-setting.job.work_vcpu_s]]
        ),
        bounds=np.stack([np.zeros(2 * size), np.where(np.tile(allowed.ravel(), 2), np.inf, 0.0)], axis=1),
        method="highs",
    )
    return float(solution.fun) if solution.status == 0 else float("inf")


def paid_hours(setting: Setting, start_s: int) -> tuple[Outcome, Outcome]:
    """(lower bound, feasible schedule) for one start, as outcomes; their runtimes are the best ends found."""
    full_s = max(1, round(setting.job.hours * HOUR_S))
    if start_s + full_s > setting.history.end_s:
        unfinished = Outcome(start_s, setting.history.end_s, False, 0, 0, 0, 0, 0)
        return unfinished, unfinished
    cells = cells_of(setting, start_s, start_s + full_s)
    lengths = [round(share * full_s) for share in END_SHARES]
    reliable_per_s = setting.reliable.hourly / HOUR_S
    bound, bound_s = float("inf"), full_s
    schedule, schedule_s = float("inf"), full_s
    earlier_s = round(full_s * setting.job.vcpus / setting.job.cap_vcpus)
    for length_s in lengths:
        if length_s < earlier_s:
            continue
        value = _solve(cells.least, setting, length_s) + reliable_per_s * earlier_s
        if value < bound:
            bound, bound_s = value, earlier_s
        value = _solve(cells.first, setting, length_s) + reliable_per_s * length_s
        if value < schedule:
            schedule, schedule_s = value, length_s
        earlier_s = length_s
    reliable = setting.reliable.vcpus
    work = round(setting.job.work_vcpu_s)

    def outcome(cost: float, length: int) -> Outcome:
        done = np.isfinite(cost)
        money = round(cost) if done else 0
        return Outcome(start_s, start_s + length, bool(done), money, 0, 0, work, reliable * length)

    return outcome(bound, bound_s), outcome(schedule, schedule_s)
