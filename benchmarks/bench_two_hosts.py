"""A step of data-parallel training on two hosts with a link between them, against DistributedDataParallel over gloo.

The 25 M-parameter network of bench_ddp (100 MB), 64 items a process and step, momentum, one thread of computing
each. The engine runs with keys: everything that crosses the link is encrypted; DDP sends in the clear. Both send 100 MB
a step in each direction. The limit: these bytes at the link's rate, or the step without exchange if that is longer.
Variants are measured in turn for several rounds; a ratio is the median of the rounds' ratios.
`python benchmarks/bench_two_hosts.py [--quick] [--rate 1gbit] [--rounds 3] [--partitions 2,8,16]`. Needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial

import link_peer
from child_machines import TASKS, WARM_UP, Engine, application
from ddp_peer import Options
from hosts import Link
from link_rig import RELIABLE, Rig, machine_line, or_skip
from measuring import median_ratio

WORLD = 2
PORT = 29511


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round, few steps and variants")
    parser.add_argument("--model", default="mlp", choices=list(TASKS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int, help="counted in each run")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--partitions", default=None, help="of the engine, such as 2,8,16")
    parser.add_argument("--json", action="store_true", help="the figures as JSON as well")
    arguments = parser.parse_args()
    quick = arguments.quick
    rounds = arguments.rounds or (1 if quick else 3)
    steps = WARM_UP + (arguments.steps or (3 if quick else 8))
    partitions = [int(n) for n in (arguments.partitions or ("8" if quick else "2,8,16")).split(",")]
    buckets = (25,) if quick else (5, 25, 100)
    task, link = TASKS[arguments.model], Link(arguments.rate)
    print(f"{machine_line()}; {task.name}, {WORLD} hosts, link {link}, rounds: {rounds}", flush=True)
    found: dict[str, list[float]] = {}
    with Rig(WORLD, link) as rig:
        rig.call(WORLD, link_peer.join, rig.hosts.address(0), PORT, WORLD)

        def peer(options: Options | None) -> float:
            answers = rig.call(WORLD, link_peer.steps, task, options, steps)
            return statistics.median(s for seconds in answers for s in seconds[WARM_UP:])

        def engine(count: int) -> float:
            how = Engine(None, count)
            ran = rig.run([RELIABLE] * WORLD, how.config(steps, task), application(task))
            return statistics.median(ran.seconds(WARM_UP))

        variants: dict[str, Callable[[], float]] = {"no exchange": partial(peer, None)}
        for options in (Options(), *map(Options, buckets)):
            variants[f"DDP {options}"] = partial(peer, options)
        for count in partitions:
            variants[f"engine, {count} partitions"] = partial(engine, count)
        for _ in range(rounds):
            for label, measure in variants.items():
                found.setdefault(label, []).append(measure())
        rig.call(WORLD, link_peer.leave)
    model_bytes = 4 * sum(p.numel() for p in task.build().parameters())
    figures = report(found, model_bytes, link)
    if arguments.json:
        print(json.dumps(figures))


def report(found: dict[str, list[float]], model_bytes: int, link: Link) -> dict[str, float]:
    """Print the table."""
    link_s = model_bytes / link.payload_bytes_per_s
    limit_s = max(link_s, statistics.median(found["no exchange"]))
    tuned = [label for label in found if "bucket_cap" in label]
    best = min(tuned, key=lambda label: statistics.median(found[label]))
    print(f"\nlimit {limit_s * 1e3:.0f} ms: {model_bytes / 1e6:.0f} MB each way at {link}")
    print(f"  {'':62}{'ms':>9}{'/ DDP':>8}{'/ best':>8}{'/ limit':>9}")
    for label, seconds in found.items():
        ratios = [median_ratio(seconds, found[to]) for to in ("DDP defaults", best)]
        middle = statistics.median(seconds)
        print(f"  {label:62}{middle * 1e3:9.1f}{ratios[0]:8.2f}{ratios[1]:8.2f}{middle / limit_s:9.2f}")
    return {label: statistics.median(seconds) for label, seconds in found.items()}


if __name__ == "__main__":
    or_skip(main)
