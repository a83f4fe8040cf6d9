"""Table 3 of Chen et al. on traces of ours: error of one-step predictions, and what it does to LB-BSP.

Made traces (seeded): regime changes, bursts, drift, each with CPU and memory that explain the speed and without;
and one recorded by `--record`: a pinned worker beside processes that come and go. SimpleRNN and LSTM are quoted.

    python benchmarks/bench_straggler_predictors.py [--quick] [--traces] [--record FILE [--seconds S]]
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numba
import numpy as np
import psutil

from straggler.lbbsp.auto import HOLD
from straggler.lbbsp.policy import LbBsp
from straggler.simulate.patterns import Cluster, parse_pattern
from straggler.simulate.schemes import Experiment, parse_scheme, run_scheme
from straggler.speed.narx import Narx
from straggler.speed.predictors import Arima, Ema, Memoryless, Resources, RestartingEma, SpeedPredictor
from straggler.speed.traces import SpeedTrace, bursts, drift, regimes, rmse

RECORDED = Path(__file__).with_name("bench_straggler_recorded.csv")
PREDICTORS: dict[str, Callable[[], SpeedPredictor]] = {
    "memoryless": Memoryless,
    "EMA 0.2": Ema,
    "ARIMA(2,2,1)": Arima,
    "NARX": Narx,
    "NARX from 0": lambda: Narx(pretrained=None),
}
# The paper's SimpleRNN has 8.34, its LSTM 9.19.
PRINTED = {
    "memoryless": 11.85,
    "EMA 0.2": 7.85,
    "ARIMA(2,2,1)": 9.67,
    "NARX": 4.78,
}


@numba.njit(cache=True)
def work(units: int) -> float:
    """A fixed amount of arithmetic."""
    x = 0.5
    for _ in range(units):
        x = 3.7 * x * (1 - x)
    return x


def compete(seed: int, core: int) -> None:
    """Another job: runs and sleeps by chance, on the worker's core."""
    os.sched_setaffinity(0, {core})
    rng = random.Random(seed)
    while True:
        end = time.monotonic() + rng.expovariate(1 / 1.5)
        while time.monotonic() < end:
            work(200_000)
        time.sleep(rng.expovariate(1 / 2.0))


def free_share(core: int) -> float:
    """The share of its core that a process there would get: one over one plus those that run on it."""
    running = 0
    for process in psutil.process_iter(["status", "cpu_num"]):
        if process.pid != os.getpid() and process.info["status"] == psutil.STATUS_RUNNING:
            running += process.info["cpu_num"] == core
    return 1 / (1 + running)


def record(path: Path, seconds: float) -> None:
    """Measure this machine: a CSV of seconds, cpu and memory per iteration, which is a pattern `trace:FILE`, too."""
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    work(1000)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=compete, args=(seed, core), daemon=True) for seed in range(2)]
    for other in others:
        other.start()
    rows = []
    try:
        time.sleep(3)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            cpu, memory = free_share(core), psutil.virtual_memory().available / psutil.virtual_memory().total
            begun = time.perf_counter()
            work(6_000_000)
            rows.append((round(time.perf_counter() - begun, 6), round(cpu, 4), round(memory, 4)))
    finally:
        for other in others:
            other.kill()
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("seconds", "cpu", "memory"), *rows])
    print(f"{len(rows)} iterations in {path}")


def recorded(path: Path) -> SpeedTrace:
    table = np.genfromtxt(path, delimiter=",", names=True)
    return SpeedTrace(np.median(table["seconds"]) / table["seconds"] * 100, table["cpu"], table["memory"])


def changing_within(trace: SpeedTrace, rng: np.random.Generator) -> list[tuple[float, Resources, Resources]]:
    """Of each clock the speed, the resources that the worker had, and those that it has at its end.

    From one iteration of the trace to the next they change at a moment within the clock.
    """
    rows = list(trace)
    found = []
    for (speed, had), (later, has) in pairwise(rows):
        part = float(rng.random())
        mean = Resources(
            part * had.cpu + (1 - part) * has.cpu,
            part * had.memory + (1 - part) * has.memory,
        )
        found.append((part * speed + (1 - part) * later, mean, has))
    return found


def clocks_over_ideal(
    workers: Sequence[Sequence[tuple[float, Resources, Resources]]], predicts: bool
) -> float:
    """The clocks of a job with `balance: lbbsp` on these workers, over the perfect division of their work; the workers
    foresee their speeds themselves if `predicts`."""
    units, names = 64 * len(workers), tuple(range(len(workers)))
    policy = LbBsp(units, RestartingEma, home=dict.fromkeys(names, 64), hold=HOLD)
    nets = [Narx() for _ in names]
    took_s = ideal_s = 0.0
    for clock, rows in enumerate(zip(*workers, strict=True)):
        planned = policy.plan(names).units
        seconds = [mine / speed for mine, (speed, _, _) in zip(planned, rows, strict=True)]
        if clock >= 100:
            took_s += max(seconds)
            ideal_s += units / sum(speed for speed, _, _ in rows)
        for name, (speed, had, has) in enumerate(rows):
            expected = None
            if predicts:
                nets[name].observe(speed, had)
                expected = nets[name].predict(has)
            policy.observe(name, planned[name], seconds[name], expected=expected)
    return took_s / ideal_s


def show_jobs(rounds: int, iterations: int) -> None:
    """The policy of running jobs with both predictors."""
    print("\nbalance: lbbsp as in a job, 4 machines; clocks over the ideal (median of the rounds)")
    print(f"{'trace':>28}{'ema':>10}{'narx':>10}")
    for explained in (True, False):
        for made in (regimes, bursts, drift):
            over: dict[bool, list[float]] = {False: [], True: []}
            for number in range(rounds):
                rng = np.random.default_rng([number, 7])
                workers = [
                    changing_within(made(10 * number + worker, iterations, explained=explained), rng)
                    for worker in range(4)
                ]
                for predicts, found in over.items():
                    found.append(clocks_over_ideal(workers, predicts))
            name = f"{made.__name__}, {'explained' if explained else 'not explained'}"
            print(f"{name:>28}" + "".join(f"{np.median(found):>10.3f}" for found in over.values()))


def show_errors(seeds: range) -> dict[str, dict[str, float]]:
    """Of each kind of trace the error of each predictor, the mean over the seeds."""
    rows: list[tuple[str, list[SpeedTrace], int]] = [
        (
            f"{made.__name__}, {'explained' if explained else 'not explained'}",
            [made(s, explained=explained) for s in seeds],
            600,
        )
        for explained in (True, False)
        for made in (regimes, bursts, drift)
    ]
    if RECORDED.exists():
        rows.append(("recorded (after 200)", [recorded(RECORDED)], 200))
    print("root mean square error, samples/s of about 100; iterations after the first 600")
    print(f"{'trace':>28}" + "".join(f"{name:>14}" for name in PREDICTORS) + f"{'NARX / next':>14}")
    found = {}
    for name, traces, skip in rows:
        errors = {
            who: float(np.mean([rmse(make(), t, skip) for t in traces])) for who, make in PREDICTORS.items()
        }
        second = min(error for who, error in errors.items() if not who.startswith("NARX"))
        cells = "".join(f"{e:>14.2f}" for e in errors.values())
        print(f"{name:>28}{cells}{errors['NARX'] / second:>14.2f}", flush=True)
        found[name] = errors
    print(
        f"{'printed (ResNet-32, B)':>28}" + "".join(f"{PRINTED.get(who, 0) or '-':>14}" for who in PREDICTORS)
    )
    return found


def show_schemes(quick: bool) -> None:
    """What the predictors do to LB-BSP."""
    print("\nLB-BSP, 32 workers, 128 samples each; waiting, per-update time over ASP")
    schemes = ("bsp", "lb-bsp:memoryless", "lb-bsp:ema", "lb-bsp:arima", "lb-bsp:narx")
    patterns = ["heterogeneous:0.3333"]
    if not quick:
        patterns = [
            f"heterogeneous:{level},{redraw},{noise}"
            for level, redraw, noise in [
                ("1", 1000, 0.01), ("0.5", 1000, 0.01), ("0.3333", 1000, 0.01), ("0.3333", 100, 0.01),
                ("0.3333", 20, 0.01), ("0.3333", 5, 0.01), ("0.3333", 1000, 0.03), ("0.3333", 1000, 0.1),
                ("0.3333", 100, 0.1),
            ]
        ]  # fmt: skip
    print(f"{'speeds, redraw, noise':>30}" + "".join(f"{name:>22}" for name in schemes))
    experiment = Experiment(Cluster(32, 32), iterations=60 if quick else 1000, units=128)
    for text in patterns:
        pattern = parse_pattern(text)
        asp, _ = run_scheme(parse_scheme("asp"), pattern, experiment, 0)
        cells = []
        for name in schemes:
            row, _ = run_scheme(parse_scheme(name), pattern, experiment, 0)
            cells.append(f"{row.waiting_share:>13.1%}{row.per_iteration_s / asp.per_iteration_s:>9.3f}")
        print(f"{text.partition(':')[2]:>30}" + "".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--traces", action="store_true", help="the first table alone")
    parser.add_argument("--jobs", action="store_true", help="not the last table")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="the first of the made traces")
    parser.add_argument(
        "--json", action="store_true", help="the first table as JSON as well, in the last line"
    )
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.record, arguments.seconds)
        return
    seeds = range(arguments.seed, arguments.seed + (2 if arguments.quick else 8))
    errors = show_errors(seeds)
    if not arguments.traces:
        show_jobs(1 if arguments.quick else 4, 600 if arguments.quick else 1500)
        if not arguments.jobs:
            show_schemes(arguments.quick)
    if arguments.json:
        print(json.dumps(errors))


if __name__ == "__main__":
    main()
