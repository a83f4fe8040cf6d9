"""LB-BSP's batch sizes: time and optimality beside the "existing mathematical toolboxes" that the paper points to.

Peer: scipy's linear program (HiGHS) for equation 5, rounded by largest remainder. Limit: one pass over the speeds in
numpy, which gives real numbers only. Last: what a running job's policy takes to plan a clock.

    python benchmarks/bench_straggler_lbbsp.py [--quick]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from measuring import least_cpu_s, versions
from scipy.optimize import linprog
from scipy.sparse import diags, hstack

from straggler.lbbsp.policy import LbBsp
from straggler.lbbsp.sizes import allocate_cpu, cpu_batch_sizes, gpu_batch_sizes, resolve
from straggler.speed.predictors import Ema

WORKERS, UNITS, LIMIT_MS = 1000, 4096, 5.0


def best_ms(run: Callable[..., object], *arguments: object, times: int = 5) -> float:
    run(*arguments)  # compiled
    return 1e3 * least_cpu_s(times, run, *arguments)


def rounded(real: np.ndarray, total: int) -> np.ndarray:
    sizes = np.floor(real).astype(np.int64)
    order = np.argsort(sizes - real)
    sizes[order[: total - sizes.sum()]] += 1
    return sizes


def program(
    slope: np.ndarray, fixed: np.ndarray, low: np.ndarray, high: np.ndarray, total: int
) -> np.ndarray:
    """minimise T: m x + b <= T, x_s <= x <= x_o, sum x = X."""
    n = len(slope)
    cost = np.zeros(n + 1)
    cost[-1] = 1
    times = hstack([diags(slope), -np.ones((n, 1))]).tocsr()
    whole = np.append(np.ones(n), 0)[None, :]
    bounds = [*zip(low, high, strict=True), (0, None)]
    return linprog(cost, times, -fixed, whole, [total], bounds, method="highs").x[:-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    print(f"{versions('numpy', 'scipy')}; CPU ms, best of 5")
    print("longest: the longest worker's time with LP (CPU: proportional) and rounding, over ours")
    print(f"{'n':>8}{'':>6}{'ours':>10}{'LP':>10}{'ratio':>9}{'one pass':>10}{'longest':>12}{'resolve':>10}")
    for n in (32, 1000, 100_000):
        cpu(n)
        gpu(n, with_program=not quick or n <= 1000)
    median_ms = plan_ms(WORKERS, UNITS)
    print(
        f"a plan of {UNITS} units for {WORKERS} measured workers: {median_ms:.2f} ms, limit {LIMIT_MS:g} ms"
    )


def plan_ms(workers: int, units: int) -> float:
    """The median over 30 clocks, each with new measurements of all workers."""
    rng = np.random.default_rng(workers)
    names, speeds = tuple(range(workers)), rng.uniform(0.5, 4.0, workers)
    policy = LbBsp(units, Ema, hold=0.01, home=dict.fromkeys(names, units // workers))
    deal = [units // workers] * workers
    spent = []
    for _ in range(30):
        noise, other_s = rng.uniform(0.95, 1.05, workers), rng.uniform(0.005, 0.015, workers)
        for name in names:
            policy.observe(name, deal[name], deal[name] / speeds[name] * noise[name], other_s=other_s[name])
        begun = time.process_time()
        deal = list(policy.plan(names).units)
        spent.append(time.process_time() - begun)
    return 1e3 * float(np.median(spent))


def cpu(n: int) -> None:
    rng = np.random.default_rng(n)
    total, v = n * 128, rng.uniform(50, 150, n)
    ours = best_ms(cpu_batch_sizes, v, total)
    one = best_ms(lambda: total * v / v.sum())
    longest = (rounded(total * v / v.sum(), total) / v).max() / (cpu_batch_sizes(v, total) / v).max()
    state = allocate_cpu(v, total)
    spent = []
    for _ in range(60):
        worker, speed = int(rng.integers(n)), float(rng.uniform(50, 150))
        begun = time.process_time()
        resolve(state, worker, speed)
        spent.append(time.process_time() - begun)
    again = 1e3 * float(np.median(spent))
    print(f"{n:>8}{'CPU':>6}{ours:>10.3f}{'-':>10}{'-':>9}{one:>10.3f}{longest:>12.5f}{again:>10.3f}")


def gpu(n: int, with_program: bool) -> None:
    rng = np.random.default_rng(n)
    total = n * 128
    slope, intercept, comm = (
        rng.uniform(0.0004, 0.002, n),
        rng.uniform(0.01, 0.05, n),
        rng.uniform(0, 0.02, n),
    )
    low, high = rng.integers(58, 104, n), rng.integers(384, 1185, n)
    ours = best_ms(gpu_batch_sizes, slope, intercept, comm, low, high, total)
    if not with_program:
        print(f"{n:>8}{'GPU':>6}{ours:>10.3f}")
        return
    solve = best_ms(program, slope, intercept + comm, low, high, total, times=1)
    sizes = rounded(program(slope, intercept + comm, low, high, total), total)
    best = gpu_batch_sizes(slope, intercept, comm, low, high, total)
    longest = (slope * sizes + intercept + comm).max() / (slope * best + intercept + comm).max()
    print(f"{n:>8}{'GPU':>6}{ours:>10.3f}{solve:>10.1f}{ours / solve:>9.4f}{'-':>10}{longest:>12.5f}")


if __name__ == "__main__":
    main()
