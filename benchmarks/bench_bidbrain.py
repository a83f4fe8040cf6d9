"""Speed of the bidding simulator: jobs per second of the compiled policies, eviction tables, the whole command.

Reads the recordings in ../shared/data where they are (set A: d2.xlarge and d2.2xlarge, spring 2016), else a made
market of the same size. The peers are our own plain twin (same decisions, same bill) and an earlier untuned one's
printed figures.

    python benchmarks/bench_bidbrain.py [--quick] [--cold]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring import computer, least_cpu_s

from bidbrain.config import load_config
from bidbrain.history.archive import rows_of, write_rows
from bidbrain.history.generate import Character, generate
from bidbrain.history.prices import History
from bidbrain.history.readers import read_history
from bidbrain.instants import Interval
from bidbrain.policy.registry import SCHEMES
from bidbrain.risk.eviction import EvictionTable
from bidbrain.setting import Setting
from bidbrain.simulate.compiled import CompiledSimulator
from bidbrain.simulate.experiment import Starts, price_margin_s
from bidbrain.simulate.plan import make_setting
from bidbrain.simulate.simulator import simulate

ROOT = Path(__file__).resolve().parents[1]
RECORDING = ROOT.parent / "shared" / "data" / "spot" / "2016-02_2016-04_us-east-1.csv.gz"
TARGETS = {"proteus": (2500, 2040), "renewal": (6000, 4910)}


def best_command(work: Callable[[], object], rounds: int) -> tuple[float, float]:
    """(wall-clock, CPU) seconds of the quickest of some rounds of a child process."""
    times = []
    for _ in range(rounds):
        begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        work()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        times.append((time.perf_counter() - begun, cpu))
    return min(times)


def load() -> tuple[History, Path, str]:
    """(history, its file, what it is)."""
    if RECORDING.exists():
        return read_history([RECORDING]), RECORDING, "recording of spring 2016, set A"
    markets = [
        (kind, f"us-east-1{zone}", price)
        for kind, price in (("d2.xlarge", 690_000), ("d2.2xlarge", 1_380_000))
        for zone in "abc"
    ]
    made = generate(markets, Interval.parse("2016-02-25T10:00Z/2016-04-25T13:00Z"), Character.CALM, 0)
    path = Path(tempfile.mkdtemp()) / "made.csv.gz"
    write_rows(path, rows_of(made))
    return made, path, "made market (the recording is not here)"


def setting_a(history: History) -> tuple[Setting, Interval]:
    config = load_config(ROOT / "configs" / "simulate_2016.yaml", {"job_hours": [20.0]})
    markets = [m for m in history.markets if m.instance_type in config.types]
    assert config.train is not None
    assert config.evaluate is not None
    train, evaluate = Interval.parse(config.train), Interval.parse(config.evaluate)
    return make_setting(config, history.select(markets), markets, train, evaluate), evaluate


def jobs_per_second(setting: Setting, evaluate: Interval, jobs: int, rounds: int) -> None:
    print(f"\n20 h jobs per second of CPU, one core, best of {rounds} (compiled, tables trained before)")
    print(f"{'scheme':20} {'compiled':>10} {'plain twin':>11} {'ratio':>7} {'target':>8} {'untuned':>8}")
    starts = Starts(jobs, 0).draw((evaluate,), price_margin_s(20.0))
    for name in ("standard_checkpoint", "proteus", "renewal", "one_hour_oracle"):
        scheme = SCHEMES[name]
        own = scheme.setting(setting)
        fast = CompiledSimulator(own, scheme)
        fast.run(starts)
        rate = jobs / least_cpu_s(rounds, fast.run, starts)
        few = starts[: max(3, jobs // 100)]
        plain = len(few) / least_cpu_s(
            2,
            lambda own=own, scheme=scheme, few=few: [
                simulate(own, scheme.name, scheme.make(own, s), s, scheme.reliable) for s in few
            ],
        )
        target, untuned = TARGETS.get(name, (0, 0))
        verdict = "" if not target else "met" if rate >= target else "MISSED"
        print(
            f"{name:20} {rate:10,.0f} {plain:11,.0f} {rate / plain:6.0f}x"
            f" {target or '':>8} {untuned or '':>8} {verdict}"
        )


def eviction_tables(history: History, rounds: int) -> None:
    markets = history.markets
    EvictionTable.train(history, markets, history.window)
    seconds = least_cpu_s(rounds, EvictionTable.train, history, markets, history.window)
    days = history.window.seconds / 86_400
    size = f"{days:.0f} days x {len(markets)} markets x 19 deltas"
    print(f"\nexact eviction tables, {size}: {1000 * seconds:.0f} ms of CPU (limit 500)")


def whole_command(path: Path, starts: int, cold: bool) -> None:
    """`proteus simulate` with three schemes, numba's cache warm, and cold on request."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "agileml.cli", "simulate", str(ROOT / "configs" / "simulate_2016.yaml")),
            *("--history", str(path), "--job-hours", "20", "--starts", str(starts), "--out", folder),
            *("--schemes", "standard_checkpoint,proteus,renewal"),
        ]

        def run(cache: str | None = None) -> None:
            extra = {} if cache is None else {"NUMBA_CACHE_DIR": cache}
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, env=os.environ | extra)

        run()
        print(f"\nwhole command, {starts} starts x 3 schemes, plots and page included")
        wall, cpu = best_command(run, 2)
        print(f"  cache warm: {wall:5.1f} s, {cpu:5.1f} s of CPU (limit 10)")
        if cold:
            with tempfile.TemporaryDirectory() as cache:
                wall, cpu = best_command(lambda: run(cache), 1)
                print(f"  cache cold: {wall:5.1f} s, {cpu:5.1f} s of CPU (limit 30)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer jobs and rounds")
    parser.add_argument("--cold", action="store_true", help="also the whole command without numba's cache")
    options = parser.parse_args()
    print(computer("Python", "numba", "numpy"))
    history, path, what = load()
    print(what)
    setting, evaluate = setting_a(history)
    jobs_per_second(setting, evaluate, 200 if options.quick else 1000, 3 if options.quick else 5)
    eviction_tables(history, 3 if options.quick else 5)
    whole_command(path, 200 if options.quick else 1000, options.cold)


if __name__ == "__main__":
    main()
