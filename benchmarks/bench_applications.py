"""Do the bundled applications learn as well as plain code, and what does cutting the work into units cost?

    python benchmarks/bench_applications.py [--quick]

Learning: matrix factorization with 64 clocks a pass against plain sequential SGD tuned over a grid of rates and
penalties; logistic regression by minibatches against scikit-learn's solver on the same split with the same penalty.
Cost: a clock of the deterministic sequential run (16 units, their sum along the tree, the optimizer) against the bare
arithmetic of the same items in one plain loop.
Real data are read from ../shared/data where they are; without them made data of about the same size are used.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from measuring import versions
from sklearn.linear_model import LogisticRegression as Peer

from agileml.application import Settings
from agileml.apps.logistic_regression import LogisticRegression, loss_and_gradient
from agileml.apps.matrix_factorization import MatrixFactorization, _steps
from agileml.core.compute.threads import single_threaded
from agileml.core.compute.unit_error import UnitError
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential

DATA = Path(__file__).resolve().parents[2] / "shared/data/ml"
SUM = optimizer("sgd", learning_rate=1.0)  # tables of steps have no use for one


def row(what: str, ours: str, peer: str, ratio: float, limit: str) -> None:
    print(f"{what:<52} {ours:>12} {peer:>12} {ratio:>9.4f}   {limit}", flush=True)


def best_s(times: int, run: Callable[[], Any]) -> float:
    """Shortest of some runs, in seconds."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def ratings() -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(name, data section, tuned model section)."""
    if (DATA / "ratings.csv").exists():
        return "MovieLens, 100,836", {"path": str(DATA / "ratings.csv")}, {"rate": 0.02, "l2": 0.08}
    made = {"kind": "made", "users": 610, "items": 2000, "ratings": 100_000}
    return "made, 100,000", made, {"rate": 0.04, "l2": 0.08}


def bench_mf(quick: bool) -> None:
    name, data, model = ratings()
    passes = 20
    grid = [(model["rate"], model["l2"])]
    if not quick:
        grid = list(product((0.01, 0.015, 0.02, 0.03, 0.04, 0.06), (0.04, 0.06, 0.08, 0.1, 0.15)))

    def plain(rate: float, l2: float) -> float:
        alone = MatrixFactorization(Settings(data, {"rate": rate, "l2": l2}))
        tables = run_sequential(alone, optimizer=SUM, clocks=passes)
        return alone.evaluate(tables)["test_rmse"]

    tuned = {point: plain(*point) for point in grid}
    best = min(tuned, key=lambda point: tuned[point])
    print(
        f"MF, {name} ratings, {passes} passes: plain SGD is best at rate {best[0]}, l2 {best[1]} of {len(grid)}"
    )
    shapes = [(64, True), (64, False)] + ([] if quick else [(16, True), (32, True), (256, True)])
    for clocks_per_pass, deterministic in shapes:
        how = Settings(data, {"rate": best[0], "l2": best[1]}, slices=16, clocks_per_pass=clocks_per_pass)
        app = MatrixFactorization(how)
        what = (
            f"MF test RMSE, {clocks_per_pass} clocks a pass{'' if deterministic else ', not deterministic'}"
        )
        clocks = passes * clocks_per_pass
        try:
            tables = run_sequential(app, optimizer=SUM, clocks=clocks, deterministic=deterministic)
        except UnitError as error:
            print(f"{what:<52} {error.problem}")
            continue
        found = app.evaluate(tables)["test_rmse"]
        limit = "<= 1.01" if clocks_per_pass == 64 else ""
        row(what, f"{found:.5f}", f"{tuned[best]:.5f}", found / tuned[best], limit)

    app = MatrixFactorization(Settings(data, model, slices=16, clocks_per_pass=64))
    tables = {table.name: app.initial(table) for table in app.tables()}
    share = MatrixFactorization(Settings(data, model)).load(0)
    rate, l2 = np.float32(0.001), np.float32(0.1)
    arguments = (tables["users"], tables["items"], True, rate, l2)
    bare = best_s(5, lambda: _steps(share.users, share.items, share.values, *arguments))
    for deterministic in (True, False):
        clock = clock_s(app, deterministic, 128)
        what = f"MF ms a clock of 1,418 ratings{'' if deterministic else ', not deterministic'}"
        row(what, f"{1e3 * clock:.3f}", f"{1e3 * bare / 64:.3f}", clock / (bare / 64), "")


def clock_s(app: Any, deterministic: bool, clocks: int) -> float:
    """Seconds of a clock of the sequential run, best of 5, without what the first clocks have to prepare."""
    marks: list[float] = []
    run_sequential(
        app,
        optimizer=SUM,
        clocks=6 * clocks,
        deterministic=deterministic,
        on_clock=lambda *_: marks.append(time.perf_counter()),
    )
    return min(marks[i + clocks - 1] - marks[i] for i in range(clocks, 5 * clocks, clocks)) / (clocks - 1)


def bench_mlr(quick: bool) -> None:
    jobs: list[tuple[str, dict[str, Any], dict[str, Any], int, int]] = [
        ("digits", {}, {"kind": "adam", "learning_rate": 0.1}, 4, 300)
    ]
    if not quick and (DATA / "mnist.npz").exists():
        mnist = {"path": str(DATA / "mnist.npz")}
        jobs.append(("MNIST", mnist, {"kind": "adam", "learning_rate": 0.005}, 60, 1200))
    for name, data, algorithm, clocks_per_pass, clocks in jobs:
        for seed in range(3 if name == "digits" else 1):
            app = LogisticRegression(Settings(data, seed=seed, slices=16, clocks_per_pass=clocks_per_pass))
            found = app.evaluate(run_sequential(app, optimizer=optimizer(**algorithm), clocks=clocks))
            split = app.data
            peer = Peer(C=1.0, max_iter=200).fit(split.scaled(split.train_items), split.train_labels)
            theirs = peer.score(split.scaled(split.test_items), split.test_labels)
            ours = found["test_accuracy"]
            what = f"MLR test accuracy, {name}, seed {seed}, {clocks} clocks"
            limit = "at most 0.006 below" + (", >= 0.95" if name == "digits" else "")
            row(what, f"{ours:.4f}", f"{theirs:.4f}", ours / theirs, limit)

    app = LogisticRegression(
        Settings(
            {"kind": "blobs", "examples": 20_000, "features": 784, "classes": 10},
            slices=16,
            clocks_per_pass=8,
        )
    )
    weights = app.initial(app.tables()[0])
    parts = [app.load(index) for index in range(16)]
    x = np.concatenate([part.features for part in parts])[:2000]
    y = np.concatenate([part.labels for part in parts])[:2000]
    with single_threaded():
        bare = best_s(9, lambda: loss_and_gradient(weights, x, y))
        for deterministic in (True, False):
            clock = clock_s(app, deterministic, 8)
            what = f"MLR ms a clock, 2,000 x 784{'' if deterministic else ', not deterministic'}"
            row(what, f"{1e3 * clock:.3f}", f"{1e3 * bare:.3f}", clock / bare, "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="no tuning grid and no MNIST")
    quick = parser.parse_args().quick
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, {versions('Python', 'numpy', 'numba', 'scikit-learn')}"
    )
    print(f"{'':<52} {'ours':>12} {'peer':>12} {'ratio':>9}   limit")
    bench_mf(quick)
    bench_mlr(quick)


if __name__ == "__main__":
    main()
