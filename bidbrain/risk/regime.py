"""How dangerous a pool is just now, against its usual self: a filter over a few regimes. Pure.

Capacity goes in bursts: after an eviction, the next one is near. A pool is in one of the regimes MULTIPLIERS (losses at
so many times the usual rate); now and then it draws a new one. Time without a loss, losses, refused launches and
rebalance hints are weighed by Bayes' rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit

STATES = (0.1, 0.4, 1.5, 6.0, 24.0)
WEIGHTS = (0.55, 0.25, 0.12, 0.06, 0.02)
_MEAN = sum(weight * state for weight, state in zip(WEIGHTS, STATES, strict=True))
# Their mean under WEIGHTS is 1: the usual rate stays usual.
MULTIPLIERS = tuple(state / _MEAN for state in STATES)
STAY_H = 12.0  # mean time in a regime
STEP_H = 0.25  # longer stretches without news are taken in steps
HALF_REFUSED = 4.0  # at this multiple of the usual rate, half of all launches are refused

Chances = tuple[float, ...]


def _normal(weights: list[float]) -> Chances:
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def quiet(chances: Chances, hours: float, events_per_h: float) -> Chances:
    """After `hours` without a loss, at so many events per hour in the usual regime.

    First the regime may have changed (with probability 1 - exp(-hours / STAY_H) it was drawn anew), then the silence is
    weighed: exp(-m e t).
    """
    return _quiet(chances, hours, events_per_h)


@njit(cache=True)
def _quiet(chances: Chances, hours: float, events_per_h: float) -> Chances:
    # Where nothing is held there is no silence to weigh: one step says the same as many.
    whole = int(hours / STEP_H) if events_per_h > 0.0 else 0
    moved, silent = np.array(chances), np.empty(len(STATES))
    for steps, step_h in ((whole, STEP_H), (1, hours - whole * STEP_H)):
        stay = math.exp(-step_h / STAY_H)
        for i in range(len(STATES)):
            silent[i] = math.exp(-MULTIPLIERS[i] * events_per_h * step_h)
        for _ in range(steps):
            total = 0.0
            for i in range(len(STATES)):
                moved[i] = (stay * moved[i] + (1.0 - stay) * WEIGHTS[i]) * silent[i]
                total += moved[i]
            for i in range(len(STATES)):
                moved[i] /= total
    return moved[0], moved[1], moved[2], moved[3], moved[4]


def lost(chances: Chances) -> Chances:
    """After a loss: its likelihood in a regime is the regime's multiplier."""
    return _normal([chance * m for chance, m in zip(chances, MULTIPLIERS, strict=True)])


def answered(chances: Chances, *, refused: bool) -> Chances:
    """After a launch that was refused (scarce capacity), or granted. A rebalance hint counts as a refusal."""
    share = [m / (m + HALF_REFUSED) for m in MULTIPLIERS]
    return _normal(
        [chance * (each if refused else 1.0 - each) for chance, each in zip(chances, share, strict=True)]
    )


@dataclass
class Regime:
    """The chances of a pool's regimes as of `at_s`."""

    at_s: int
    chances: Chances = WEIGHTS

    def advance(self, now_s: int, events_per_h: float) -> None:
        """Time passed without a loss."""
        self.chances = quiet(self.chances, max(0, now_s - self.at_s) / 3600, events_per_h)
        self.at_s = max(self.at_s, now_s)

    def multiplier(self, now_s: int, events_per_h: float) -> float:
        """The expected multiple of the usual rate now; changes nothing."""
        chances = quiet(self.chances, max(0, now_s - self.at_s) / 3600, events_per_h)
        return sum(chance * m for chance, m in zip(chances, MULTIPLIERS, strict=True))
