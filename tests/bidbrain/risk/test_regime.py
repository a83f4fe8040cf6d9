"""The filter over regimes, against Bayes' rule over all paths and against a simulated pool."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.risk.regime import MULTIPLIERS, STAY_H, STEP_H, WEIGHTS, Regime, answered, lost, quiet

KINDS = st.lists(st.sampled_from(["quiet", "lost", "refused", "granted"]), min_size=1, max_size=5)


@given(KINDS, st.floats(0.001, 3.0))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_the_filter_is_bayes_rule_over_all_paths(kinds, rate) -> None:
    chances = WEIGHTS
    for kind in kinds:
        if kind == "quiet":
            chances = quiet(chances, STEP_H, rate)
        else:
            chances = lost(chances) if kind == "lost" else answered(chances, refused=kind == "refused")
    stay = math.exp(-STEP_H / STAY_H)
    total = np.zeros(len(WEIGHTS))
    steps = kinds.count("quiet")
    for path in itertools.product(range(len(WEIGHTS)), repeat=steps + 1):
        weight, at = WEIGHTS[path[0]], 0
        for kind in kinds:
            m = MULTIPLIERS[path[at]]
            if kind == "quiet":
                here, there = path[at], path[at + 1]
                weight *= (1 - stay) * WEIGHTS[there] + stay * (here == there)
                at += 1
                weight *= math.exp(-MULTIPLIERS[there] * rate * STEP_H)
            else:
                refused = m / (m + 4.0)
                weight *= {"lost": m, "refused": refused, "granted": 1 - refused}[kind]
        total[path[-1]] += weight
    assert chances == pytest.approx(tuple(total / total.sum()), rel=1e-9)


def test_the_usual_rate_stays_usual() -> None:
    assert sum(w * m for w, m in zip(WEIGHTS, MULTIPLIERS, strict=True)) == pytest.approx(1.0)
    assert sum(WEIGHTS) == pytest.approx(1.0)
    assert Regime(0).multiplier(10**7, 0.0) == pytest.approx(1.0)


def test_losses_raise_and_quiet_lowers() -> None:
    regime = Regime(0)
    before = regime.multiplier(0, 0.1)
    regime.chances = lost(regime.chances)
    after = regime.multiplier(0, 0.1)
    assert after > 3 * before
    assert regime.multiplier(6 * 3600, 0.5) < after
    assert regime.at_s == 0


def test_asking_changes_nothing_and_advancing_says_the_same() -> None:
    regime = Regime(0, lost(WEIGHTS))
    asked = regime.multiplier(5000, 0.7)
    regime.advance(5000, 0.7)
    assert regime.multiplier(5000, 0.7) == pytest.approx(asked)
    regime.advance(4000, 0.7)  # a clock that runs backwards is no news
    assert regime.at_s == 5000
