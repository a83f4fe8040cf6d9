"""ZipLine and its baselines at the sizes of table II (Zhao et al.), beside the printed times.

The limit is the sort of all times that any merge needs; GridScan and FullGridScan are heuristics, so their
waiting is compared as well.

    python benchmarks/bench_straggler_zipline.py [--quick]
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable

import numpy as np
from grid_scans import full_grid_scan, grid_scan
from measuring import least_cpu_s, versions

from straggler.elasticbsp import predicted_end_times, zipline

PRINTED_US = {
    (10, 15): (149, 168, 1540),
    (10, 150): (1320, 5500, 46_700),
    (100, 15): (6370, 1110, 81_300),
    (100, 150): (49_900, 43_800, 2_150_000),
    (1000, 15): (253_000, 7450, 4_040_000),
    (1000, 150): (2_380_000, 257_000, 207_000_000),
}


def best_us(run: Callable[..., object], *arguments: object, times: int = 5) -> float:
    run(*arguments)  # compiled, caches warm
    return 1e6 * least_cpu_s(times, run, *arguments)


def end_times(n: int, lookahead: int, seed: int = 0) -> np.ndarray:
    """Rows of overlapping range: intervals of 50 to 100 ms with 5% of jitter."""
    rng = np.random.default_rng(seed)
    intervals = rng.integers(50_000_000, 100_000_000, n)
    jitter = np.maximum(0.2, rng.normal(1, 0.05, (n, lookahead)))
    return np.cumsum(jitter * intervals[:, None], axis=1).astype(np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {versions('numpy', 'numba')}; CPU us, best of 5")
    headings = ["n x R", "ZipLine", "printed", "ratio", "/ sort", "rate", "GridScan", "printed", "wait x"]
    headings += ["FullGrid", "printed", "wait x"]
    widths = (12, 10, 11, 8, 8, 9, 10, 10, 8, 11, 13, 8)
    print("".join(f"{heading:>{width}}" for heading, width in zip(headings, widths, strict=True)))
    sizes = [*PRINTED_US, (10_000, 15), (10_000, 150)]
    for n, lookahead in sizes:
        times = end_times(n, lookahead)
        flat = times.ravel()
        zip_us = best_us(zipline, times)
        sort_us = best_us(np.sort, flat)
        rate_us = best_us(zipline, times, "rate")
        grid_us = best_us(grid_scan, times)
        least = zipline(times).wait_ns
        zip_p, grid_p, full_p = PRINTED_US.get((n, lookahead), (0, 0, 0))
        line = f"{n:>6} x {lookahead:<3}{zip_us:>10.0f}{zip_p or '-':>11}"
        line += f"{zip_us / zip_p:>8.4f}" if zip_p else f"{'-':>8}"
        line += f"{zip_us / sort_us:>8.1f}{rate_us:>9.0f}{grid_us:>10.0f}{grid_p or '-':>10}"
        line += f"{grid_scan(times).wait_ns / max(1, least):>8.2f}"
        if n * n * lookahead <= (10_000_000 if quick else 150_000_000):
            full_us = best_us(full_grid_scan, times, times=1)
            wait = full_grid_scan(times).wait_ns / max(1, least)
            line += f"{full_us:>11.0f}{full_p or '-':>13}{wait:>8.2f}"
        print(line)
    print("\nlook-ahead and objective, intervals 100, 70, 53, 41: barrier (waiting)")
    for objective in ("wait", "rate"):
        found = [
            zipline(predicted_end_times(0, [100, 70, 53, 41], r), objective) for r in (15, 30, 60, 120, 240)
        ]
        print(
            f"  {objective}: "
            + ", ".join(f"{b.barrier_ns} ({b.wait_ns})" for b in found)
            + "  at R = 15, 30, 60, 120, 240"
        )


if __name__ == "__main__":
    main()
