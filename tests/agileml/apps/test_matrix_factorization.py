"""Matrix factorization: its formulas against plain Python, and its error against a tuned sequential SGD."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agileml.application import Array, Settings, Unit, Update
from agileml.apps.matrix_factorization import MatrixFactorization, RatingSlice
from agileml.config.text import ConfigError
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential

RATINGS = Path(__file__).resolve().parents[4] / "shared/data/ml/ratings.csv"
MADE = {"kind": "made", "users": 8, "items": 9, "ratings": 120, "test_fraction": 0.25}
DATA = {"kind": "made", "users": 400, "items": 700, "ratings": 40_000}


def make(
    model: Mapping[str, Any] | None = None, data: Mapping[str, Any] = MADE, **how: Any
) -> MatrixFactorization:
    return MatrixFactorization(
        Settings(data, model or {}, **{"slices": 2, "clocks_per_pass": 3, "seed": 1, **how})
    )


def start(app: MatrixFactorization) -> dict[str, Array]:
    return {table.name: app.initial(table) for table in app.tables()}


def plain_sgd(
    app: MatrixFactorization, ratings: list[tuple[int, int, float]], tables: Mapping[str, Array]
) -> float:
    """The formulas of the module's docstring, one number at a time in float64, in place. Returns the loss."""
    m = app.model
    loss = 0.0
    for user, item, value in ratings:
        p, q = tables["users"][user], tables["items"][item]
        e = value - sum(p[f] * q[f] for f in range(m.rank))
        if m.biases:
            e -= p[-1] + q[-1]
        loss += e * e
        old = p.copy()
        for f in range(m.rank):
            p[f] += m.rate * (e * q[f] - m.l2 * p[f])
            q[f] += m.rate * (e * old[f] - m.l2 * q[f])
        if m.biases:
            p[-1] += m.rate * (e - m.l2 * p[-1])
            q[-1] += m.rate * (e - m.l2 * q[-1])
    return loss


def read(
    app: MatrixFactorization, unit: Unit, share: RatingSlice, tables: Mapping[str, Array]
) -> dict[str, Array]:
    return {name: tables[name][rows] for name, rows in app.reads(unit, share).items()}


def ratings_of(unit: Unit, share: RatingSlice, clocks_per_pass: int) -> list[tuple[int, int, float]]:
    a, b = unit.range_of(len(share.values), clocks_per_pass)
    return list(
        zip(share.users[a:b].tolist(), share.items[a:b].tolist(), share.values[a:b].tolist(), strict=True)
    )


@pytest.mark.parametrize("biases", [True, False])
def test_a_unit_of_steps_is_sgd_on_its_ratings(biases: bool) -> None:
    app = make({"rank": 3, "rate": 0.1, "l2": 0.05, "biases": biases})
    assert all(table.update is Update.STEP and table.columns == 3 + biases for table in app.tables())
    before, share, unit = start(app), app.load(1), Unit(4, 1, 1, 2)
    expected = {name: array.astype(np.float64) for name, array in before.items()}
    ratings = ratings_of(unit, share, 3)
    loss = plain_sgd(app, ratings, expected)
    updates = app.process(unit, share, read(app, unit, share, before))
    assert (updates.loss, updates.examples) == (pytest.approx(loss, rel=1e-5), len(ratings))
    for name, rows in app.reads(unit, share).items():
        np.testing.assert_allclose(updates.tables[name], (expected[name] - before[name])[rows], atol=1e-6)
        untouched = np.setdiff1d(np.arange(len(before[name])), rows)
        assert np.array_equal(expected[name][untouched], before[name][untouched])


@pytest.mark.parametrize("biases", [True, False])
def test_gradients_are_those_of_the_loss(biases: bool) -> None:
    app = make({"mode": "gradients", "rank": 3, "l2": 0.05, "biases": biases})
    assert all(table.update is Update.GRADIENT for table in app.tables())
    tables = {name: array.astype(np.float64) for name, array in start(app).items()}
    share, unit = app.load(0), Unit(1, 0)
    ratings = ratings_of(unit, share, 3)

    def objective(at: Mapping[str, Array]) -> float:
        total = 0.0
        for user, item, value in ratings:
            p, q = at["users"][user], at["items"][item]
            prediction = p[:3] @ q[:3] + (p[3] + q[3] if biases else 0.0)
            total += (value - prediction) ** 2 + 0.05 * (p @ p + q @ q)
        return total / 2

    updates = app.process(unit, share, read(app, unit, share, start(app)))
    for name, rows in app.reads(unit, share).items():
        for local, row in enumerate(rows):
            for column in range(3 + biases):
                moved = {key: array.copy() for key, array in tables.items()}
                moved[name][row, column] += 1e-5
                up = objective(moved)
                moved[name][row, column] -= 2e-5
                slope = (up - objective(moved)) / 2e-5
                assert updates.tables[name][local, column] == pytest.approx(slope, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("mode", ["steps", "gradients"])
def test_many_units_at_once_see_each_others_steps_and_sum_gradients(mode: str) -> None:
    app = make({"mode": mode, "rank": 3, "rate": 0.1})
    before = start(app)
    units, shares = [Unit(2, 0), Unit(2, 1)], [app.load(0), app.load(1)]
    reads = [app.reads(unit, share) for unit, share in zip(units, shares, strict=True)]
    rows = {name: np.union1d(reads[0][name], reads[1][name]) for name in before}
    found = app.process_many(units, shares, rows, {name: before[name][rows[name]] for name in before})
    after = {name: array.copy() for name, array in before.items()}
    for unit, share, wanted in zip(units, shares, reads, strict=True):
        seen = after if mode == "steps" else before
        one = app.process(unit, share, {name: seen[name][wanted[name]] for name in before})
        for name in before:
            after[name][wanted[name]] += one.tables[name]
    for name in before:
        np.testing.assert_allclose(found.tables[name], (after[name] - before[name])[rows[name]], atol=1e-5)


def test_error_and_summary() -> None:
    app = make({"rank": 3})
    tables = start(app)
    ratings, data = app.data.ratings, app.data
    for metric, numbers in (("train_rmse", data.train), ("test_rmse", data.test)):
        errors = [
            ratings.values[n]
            - data.mean
            - tables["users"][ratings.users[n], :3] @ tables["items"][ratings.items[n], :3]
            for n in numbers
        ]
        assert app.evaluate(tables)[metric] == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=1e-5)
    assert app.describe() == {
        "data": "made ratings",
        "users": 8,
        "items": 9,
        "train_ratings": 90,
        "test_ratings": 30,
        "split_seed": 1,
        "mean": pytest.approx(float(np.mean(ratings.values[data.train], dtype=np.float64))),
    }
    with pytest.raises(ConfigError, match=r"model.rank: found 0, expected at least 1"):
        make({"rank": 0})


def tuned_sgd(app: MatrixFactorization, passes: int, grid: list[tuple[float, float]]) -> float:
    """The least test error of plain sequential SGD: one unit of all ratings a pass, over rates and penalties."""

    def trained(rate: float, l2: float) -> float:
        alone = make({"rate": rate, "l2": l2}, app.settings.data, slices=1, clocks_per_pass=1)
        tables = run_sequential(alone, optimizer=optimizer("sgd", learning_rate=1.0), clocks=passes)
        return alone.evaluate(tables)["test_rmse"]

    return min(trained(rate, l2) for rate, l2 in grid)


@pytest.mark.slow
def test_sums_of_steps_are_as_good_as_tuned_sequential_sgd() -> None:
    # (data, our settings, the best of a far larger grid for plain SGD and its neighbours)
    real = ({"path": str(RATINGS)}, {}, [(0.02, 0.08), (0.02, 0.1), (0.03, 0.08), (0.01, 0.1)])
    made = (DATA, {"rate": 0.04, "l2": 0.08}, [(0.04, 0.08), (0.05, 0.08), (0.04, 0.06), (0.03, 0.08)])
    data, model, grid = real if RATINGS.exists() else made
    app, passes = make(model, data, slices=16, clocks_per_pass=64), 20
    tables = run_sequential(app, optimizer=optimizer("sgd", learning_rate=1.0), clocks=64 * passes)
    assert app.evaluate(tables)["test_rmse"] <= 1.01 * tuned_sgd(app, passes, grid)
