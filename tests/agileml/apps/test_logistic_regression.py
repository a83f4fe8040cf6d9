"""Logistic regression: its gradient, its objective against scikit-learn's, and the digits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression as Peer

from agileml.application import Settings, Unit
from agileml.apps.logistic_regression import LogisticRegression, loss_and_gradient
from agileml.config.text import ConfigError
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential

BLOBS = {"kind": "blobs", "examples": 400, "features": 6, "classes": 3, "spread": 2.0}


def peer_of(app: LogisticRegression) -> Peer:
    data = app.data
    peer = Peer(C=1 / app.model.l2, max_iter=10_000, tol=1e-6)
    return peer.fit(data.scaled(data.train_items).astype(np.float64), data.train_labels)


def test_the_gradient_is_that_of_the_loss() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(7, 4)), rng.integers(0, 3, 7)
    weights = rng.normal(size=(3, 4))
    loss, gradient = loss_and_gradient(weights, x, y)
    logits = x @ weights.T
    assert loss == pytest.approx(sum(np.log(np.exp(z).sum()) - z[k] for z, k in zip(logits, y, strict=True)))
    for at in np.ndindex(weights.shape):
        moved = weights.copy()
        moved[at] += 1e-6
        assert (loss_and_gradient(moved, x, y)[0] - loss) / 1e-6 == pytest.approx(gradient[at], abs=1e-4)


def test_large_scores_do_not_overflow_and_no_items_give_nothing() -> None:
    loss, gradient = loss_and_gradient(np.array([[1e4], [-1e4]], "f4"), np.ones((1, 1), "f4"), np.array([1]))
    assert loss == pytest.approx(2e4)
    assert np.isfinite(gradient).all()
    loss, gradient = loss_and_gradient(np.ones((2, 3), "f4"), np.empty((0, 3), "f4"), np.empty(0, int))
    assert loss == 0
    assert np.array_equal(gradient, np.zeros((2, 3)))


def test_the_bits_do_not_depend_on_where_the_arrays_lie() -> None:
    # Machines load different slices, so equal items lie at different addresses: vector code must not care.
    rng = np.random.default_rng(4)
    for items, features, classes in ((1, 65, 10), (3, 17, 2), (23, 65, 10), (157, 201, 7)):
        x = rng.normal(size=(items, features)).astype(np.float32)
        y = rng.integers(0, classes, items)
        weights = rng.normal(size=(classes, features)).astype(np.float32)
        found = set()
        for shift in range(16):
            moved = [np.empty(array.size + 16, np.float32)[shift:][: array.size] for array in (x, weights)]
            for target, array in zip(moved, (x, weights), strict=True):
                target[:] = array.reshape(-1)
            loss, gradient = loss_and_gradient(moved[1].reshape(weights.shape), moved[0].reshape(x.shape), y)
            found.add((loss, gradient.tobytes()))
        assert len(found) == 1


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(1, 5), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.floats(0, 3))
def test_the_clocks_of_a_pass_add_up_to_the_gradient_of_the_objective(
    clocks_per_pass: int, slices: int, parts: int, l2: float
) -> None:
    app = LogisticRegression(Settings(BLOBS, {"l2": l2}, 5, slices, clocks_per_pass))
    (table,) = app.tables()
    weights = np.random.default_rng(1).normal(size=(table.rows, table.columns)).astype(np.float32)
    units = [
        Unit(clock, s, part, parts)
        for clock in range(clocks_per_pass)
        for s in range(slices)
        for part in range(parts)
    ]
    shares = [app.load(s) for s in range(slices)]
    each = [app.process(unit, shares[unit.slice], {"weights": weights}) for unit in units]
    data = app.data
    count = len(data.train_items)
    x = np.concatenate([data.scaled(data.train_items), np.ones((count, 1), "f4")], axis=1)
    _, gradient = loss_and_gradient(weights, x, data.train_labels)
    gradient[:, :-1] += l2 * weights[:, :-1]
    mean = sum(found.tables["weights"] for found in each) / clocks_per_pass
    np.testing.assert_allclose(mean, gradient / count, atol=1e-5)
    assert sum(found.examples for found in each) == count
    at_once = app.process_many(units, [shares[unit.slice] for unit in units], {}, {"weights": weights})
    np.testing.assert_allclose(at_once.tables["weights"] / clocks_per_pass, mean, atol=1e-5)
    assert at_once.loss == pytest.approx(sum(found.loss for found in each), rel=1e-5)


@pytest.mark.parametrize("l2", [0.1, 10.0])
def test_it_ends_where_scikit_learn_ends(l2: float) -> None:
    app = LogisticRegression(Settings(BLOBS, {"l2": l2}, clocks_per_pass=1))
    found = run_sequential(app, optimizer=optimizer("momentum", learning_rate=0.3), clocks=600)["weights"]
    peer = peer_of(app)
    np.testing.assert_allclose(found[:, :-1], peer.coef_, atol=2e-3)
    # The intercepts are only fixed up to a constant.
    np.testing.assert_allclose(
        found[:, -1] - found[:, -1].mean(), peer.intercept_ - peer.intercept_.mean(), atol=2e-3
    )


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_digits_by_minibatches_are_as_good_as_scikit_learn(seed: int) -> None:
    app = LogisticRegression(Settings(seed=seed, slices=16, clocks_per_pass=4))
    tables = run_sequential(app, optimizer=optimizer("adam", learning_rate=0.1), clocks=300)
    metrics = app.evaluate(tables)
    data = app.data
    peer = peer_of(app).score(data.scaled(data.test_items), data.test_labels)
    assert metrics["test_accuracy"] >= 0.95
    assert metrics["test_accuracy"] >= peer - 0.006


def test_metrics_and_summary() -> None:
    app = LogisticRegression(Settings(BLOBS, {"l2": 1.0}, seed=3, clocks_per_pass=1))
    tables = run_sequential(app, optimizer=optimizer("momentum", learning_rate=0.3), clocks=300)
    peer, data = peer_of(app), app.data
    metrics = app.evaluate(tables)
    for name, items, labels in (
        ("train", data.train_items, data.train_labels),
        ("test", data.test_items, data.test_labels),
    ):
        p = peer.predict_proba(data.scaled(items))
        assert metrics[f"{name}_accuracy"] == pytest.approx((p.argmax(axis=1) == labels).mean(), abs=0.01)
        assert metrics[f"{name}_log_loss"] == pytest.approx(
            -np.log(p[range(len(labels)), labels]).mean(), rel=0.01
        )
    assert app.describe() == {
        "data": "made blobs",
        "classes": 3,
        "features": 6,
        "train_items": 319,
        "test_items": 81,
        "split": "stratified by seed 3, 0.2 to test",
    }
    with pytest.raises(ConfigError, match=r"model.l2: found -1, expected at least 0"):
        LogisticRegression(Settings(BLOBS, {"l2": -1}))
