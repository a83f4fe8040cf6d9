"""One, two, four and eight hosts, each held to a share of a CPU, against linear (thesis, figure 4.14).

The work of a clock stays the same and is dealt out to more hosts. A quota (cgroups) makes computing slow enough
for eight hosts on few cores; what the engine itself computes counts against it. With `--sleep` the work is a pause
and no quota holds: then what hosts take from each other on the same cores does not count. Beside the measured speed-up
stands the limit that the links give: a clock takes at least as long as its bytes do.
`python benchmarks/bench_scaling.py [--quick] [--sleep] [--cpus 0.2] [--rate 200mbit] [--model-mb 4]`. Needs root and
cgroups.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
from exchange import SIDE, Exchange
from hosts import Link
from link_rig import RELIABLE, TRANSIENT, WARM_UP, Rig, machine_line, or_skip

COUNTS = (1, 2, 4, 8)
SLICES = 64


def product_s() -> float:
    """CPU seconds of one product of the made work, the best of several tries."""
    matrix = np.full((SIDE, SIDE), 1 / SIDE, np.float32)
    best = float("inf")
    for _ in range(20):
        begin_s = time.thread_time()
        for _ in range(50):
            matrix = matrix @ matrix
        best = min(best, (time.thread_time() - begin_s) / 50)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one and four hosts, short clocks")
    parser.add_argument("--counts", help="of hosts, from 1 on, by commas: 1,8")
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--cpus", type=float, default=0.2, help="that each host may use")
    parser.add_argument("--sleep", action="store_true", help="the work is a pause, and no quota holds")
    parser.add_argument("--model-mb", type=float)
    parser.add_argument("--clock-s", type=float, help="about, of one host")
    parser.add_argument("--clocks", type=int, help="counted in each run")
    parser.add_argument("--json", action="store_true", help="the figures as JSON as well")
    arguments = parser.parse_args()
    quick = arguments.quick
    counts = (1, 4) if quick else COUNTS
    if arguments.counts:
        counts = tuple(map(int, arguments.counts.split(",")))
    model_mb = arguments.model_mb or (1.0 if quick else 4.0)
    clocks = WARM_UP + (arguments.clocks or (2 if quick else 5))
    clock_s = arguments.clock_s or (0.8 if quick else 5.0)
    cpus = None if arguments.sleep else arguments.cpus
    work = {"sleep_s": clock_s} if cpus is None else {"products": round(clock_s * cpus / product_s())}
    link = Link(arguments.rate)
    held = "pauses for work" if cpus is None else f"{cpus:g} CPU a host"
    print(f"{machine_line()}; {held}, links {link}, model {model_mb:g} MB", flush=True)
    figures: dict[str, dict[int, float]] = {}
    with Rig(max(counts) + 1, link, cpus=cpus) as rig:
        for count in counts:
            traditional = ([RELIABLE] * count, {"stage": 1, "partitions": 4 * count})
            stage_3 = (
                [RELIABLE] + [TRANSIENT] * count,
                {"stage": 3, "active_fraction": 1.0, "partitions": 4 * count},
            )
            for label, (tiers, values) in {
                "all reliable, a shard each": traditional,
                "stage 3, one reliable machine more": stage_3,
            }.items():
                told = {"clocks": clocks, "slices": SLICES, **values}
                ran = rig.run(tiers, told, Exchange(model_mb, **work))
                figures.setdefault(label, {})[count] = ran.clock_s()
                print(f"{count} hosts, {label}: {ran.clock_s():.2f} s a clock", flush=True)
    report(figures, model_mb, link)
    if arguments.json:
        print(json.dumps(figures))


def report(figures: dict[str, dict[int, float]], model_mb: float, link: Link) -> None:
    """Print the speed-ups over one host."""
    for label, seconds in figures.items():
        print(
            f"\n{label}\n{'hosts':>8}{'s':>9}{'speed-up':>10}{'of linear':>11}{'links alone, s':>16}{'limit':>8}"
        )
        one = seconds[1]
        for count, clock_s in seconds.items():
            link_s = 2 * model_mb * 1e6 * (1 - 1 / count) / link.payload_bytes_per_s
            limit = one / max(link_s, one / count)
            print(
                f"{count:8}{clock_s:9.2f}{one / clock_s:10.2f}{one / clock_s / count:11.2f}{link_s:16.2f}{limit:8.2f}"
            )


if __name__ == "__main__":
    or_skip(main)
