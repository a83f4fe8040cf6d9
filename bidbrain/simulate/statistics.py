"""Means over jobs with 95% intervals, by a bootstrap over days.

Jobs with overlapping windows are not independent, so whole days are drawn with replacement, with all jobs that start on
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bidbrain.instants import DAY_S

RESAMPLES = 2000
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """Mean and a 95% interval; NaN without any value, the mean alone (low = high) with one day."""

    mean: float
    low: float
    high: float


def bootstrap_mean(values: Values, starts: npt.NDArray[np.int64], seed: int) -> Estimate:
    """Mean of `values` (one per start, starts in s) with its interval.

    The same seed draws the same days for every scheme on the same starts.
    """
    if len(values) == 0:
        return Estimate(float("nan"), float("nan"), float("nan"))
    _, day_of = np.unique(starts // DAY_S, return_inverse=True)
    sums, jobs = np.bincount(day_of, weights=values), np.bincount(day_of)
    days = len(jobs)
    rng = np.random.default_rng([seed, 0xB007])
    drawn = rng.multinomial(days, np.full(days, 1 / days), size=RESAMPLES)
    means = (drawn @ sums) / (drawn @ jobs)
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(float(values.mean()), float(low), float(high))
