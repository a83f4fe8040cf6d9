"""K-means against scikit-learn: a pass on one core, the inertia at the end, and two machines instead of one.

    python benchmarks/bench_kmeans.py [--quick] [--rounds 5]

Pass: a clock of the deterministic sequential run (16 units, their sum along the tree) against an iteration of
`KMeans(algorithm="lloyd")` from the same centres, both with one thread,
in turn; the least CPU and wall times of the rounds, which other work disturbs least.
Inertia: the same start (our k-means++) for both, then starts of their own, mean and standard error over seeds.
Scaling: CPU seconds of a clock of one worker over those of the busiest of two, for K-means and, beside it, for
logistic regression on the same items: 2 is linear.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from typing import Any

import numpy as np
from bench_one_machine import between, config, run
from child_machines import Pair, serve_machine
from measuring import versions
from sklearn.cluster import KMeans as Peer
from sklearn.cluster import MiniBatchKMeans

from agileml.application import Settings
from agileml.apps.kmeans import KMeans, centres_of
from agileml.core.compute.threads import single_threaded
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential

SUM = optimizer("sgd", learning_rate=1.0)  # tables of steps have no use for one
FEW, MANY = 2, 12  # iterations of the peer; the difference leaves out what it prepares
FIRST_CLOCKS = 3  # that are not counted


def made(items: int, features: int, clusters: int, seed: int = 0) -> KMeans:
    data = {
        "kind": "blobs",
        "examples": items,
        "features": features,
        "classes": clusters,
        "spread": 3.0,
        "test_fraction": 0.0,
    }
    return KMeans(Settings(data, {"clusters": clusters}, seed, 16))


def our_pass_s(app: KMeans) -> tuple[float, float]:
    """Wall and CPU seconds of a clock of the sequential run, medians."""
    marks: list[tuple[float, float]] = []
    run_sequential(
        app,
        optimizer=SUM,
        clocks=MANY + 1,
        on_clock=lambda *_: marks.append((time.perf_counter(), time.process_time())),
    )
    wall, cpu = np.median(np.diff(np.array(marks), axis=0)[FEW:], axis=0)
    return float(wall), float(cpu)


def their_fits_s(items: Any, centres: Any) -> list[tuple[float, float]]:
    """The same of scikit-learn's fit of a few and of many iterations."""
    found = []
    for iterations in (FEW, MANY):
        peer = Peer(len(centres), init=centres, n_init=1, max_iter=iterations, tol=0)
        start, start_cpu = time.perf_counter(), time.process_time()
        peer.fit(items)
        found.append((time.perf_counter() - start, time.process_time() - start_cpu))
        assert peer.n_iter_ == iterations
    return found


def bench_pass(rounds: int, quick: bool) -> None:
    print(f"\n{'a pass, CPU ms':<44}{'ours':>10}{'peer':>10}{'ratio':>8}{'wall':>8}   limit")
    shapes = [(20_000, 784, 10)] if quick else [(60_000, 784, 10), (60_000, 784, 100), (100_000, 64, 256)]
    for items, features, clusters in shapes:
        app = made(items, features, clusters)
        centres = centres_of(app.initial(app.tables()[0])).astype(np.float32)
        x = app.data.scaled(app.data.train)
        with single_threaded():
            found = [(our_pass_s(app), their_fits_s(x, centres)) for _ in range(rounds)]
        wall, cpu = (min(ours[k] for ours, _ in found) for k in (0, 1))
        # The least of each fit, then their difference: the least difference would be too small.
        few, many = ([min(fits[n][k] for _, fits in found) for k in (0, 1)] for n in (0, 1))
        their_wall, their_cpu = ((b - a) / (MANY - FEW) for a, b in zip(few, many, strict=True))
        what = f"{items:,} x {features}, {clusters} clusters"
        ratios = f"{cpu / their_cpu:8.2f}{wall / their_wall:8.2f}"
        print(f"{what:<44}{1e3 * cpu:10.1f}{1e3 * their_cpu:10.1f}{ratios}   <= 1.1", flush=True)


def bench_inertia(quick: bool) -> None:
    print(f"\n{'inertia, digits, 10 clusters':<44}{'ours':>12}{'peer':>12}{'ratio':>9}")
    seeds = range(5 if quick else 20)
    ours: dict[str, list[float]] = {"full, same start": [], "full": [], "minibatch": []}
    theirs: dict[str, list[float]] = {name: [] for name in ours}
    for seed in seeds:
        app = KMeans(Settings({"kind": "digits"}, {"clusters": 10}, seed, 16))
        x = app.data.scaled(app.data.train)
        start = centres_of(app.initial(app.tables()[0])).astype(np.float32)
        found = app.evaluate(run_sequential(app, optimizer=SUM, clocks=60))["train_inertia"]
        ours["full, same start"].append(found)
        ours["full"].append(found)
        theirs["full, same start"].append(Peer(10, init=start, n_init=1, max_iter=60, tol=0).fit(x).inertia_)
        theirs["full"].append(Peer(10, n_init=1, max_iter=60, random_state=seed).fit(x).inertia_)
        settings = Settings({"kind": "digits"}, {"mode": "minibatch", "clusters": 10}, seed, 16, 4)
        batches = KMeans(settings)
        tables = run_sequential(batches, optimizer=SUM, clocks=60)
        ours["minibatch"].append(batches.evaluate(tables)["train_inertia"])
        peer = MiniBatchKMeans(10, n_init=1, batch_size=len(x) // 4, max_iter=15, random_state=seed)
        theirs["minibatch"].append(peer.fit(x).inertia_)
    for name in ours:
        a, b = np.array(ours[name]), np.array(theirs[name])
        error = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / len(a)) / b.mean()
        print(
            f"{name:<44}{a.mean():12.1f}{b.mean():12.1f}{a.mean() / b.mean():9.4f}   +- {error:.4f}",
            flush=True,
        )


def bench_scaling(rounds: int, quick: bool) -> None:
    print(f"\n{'two machines instead of one, speed-up':<44}{'wall':>8}{'CPU':>8}")
    examples = 20_000 if quick else 60_000
    clocks = 12
    data = {"kind": "blobs", "examples": examples, "features": 784, "classes": 10, "test_fraction": 0.0}
    jobs: dict[str, dict[str, Any]] = {
        "mlr": {"optimizer": {"kind": "sgd", "learning_rate": 0.1}},
        "kmeans": {"model": {"clusters": 10}},
    }
    machines = [Pair(serve_machine, world=count) for count in (1, 2)]
    speed_ups: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, more in jobs.items():
            found = []
            for count, pair in enumerate(machines, start=1):
                values = config(Settings(data, {}, 0, 2, 1), name, count, clocks, partitions=2, **more)
                ends, seen = run(pair, values)
                found.append(between(ends, seen, FIRST_CLOCKS, clocks - 1))
            (wall, cpu), (wall_of_two, cpu_of_two) = found
            speed_ups[name].append((wall / wall_of_two, cpu / cpu_of_two))
    for name, each in speed_ups.items():
        wall, cpu = np.median(each, axis=0)
        print(f"{f'{name}, {examples:,} x 784 x 10':<44}{wall:8.2f}{cpu:8.2f}", flush=True)
    for pair in machines:
        pair.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer items, seeds and rounds")
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    quick = arguments.quick
    rounds = arguments.rounds or (2 if quick else 5)
    warnings.filterwarnings("ignore", module="sklearn")  # that a solver was stopped before the end
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, "
        f"{versions('Python', 'numpy', 'scikit-learn')}"
    )
    bench_pass(rounds, quick)
    bench_inertia(quick)
    bench_scaling(rounds, quick)


if __name__ == "__main__":
    main()
