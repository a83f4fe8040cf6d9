"""The partitioner: against the released optimizer at its own cost model, in speed, and table 5.1.

    python benchmarks/bench_pipeline_partition.py [--quick]

The recorded profiles are read from ../shared/data/profiles; without them only the speeds are measured.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from measuring import computer, versions

from pipeline.compare import best_in_flight, simulate_long
from pipeline.partition.closed_sets import closed_sets
from pipeline.partition.planner import data_parallel_plan, partition
from pipeline.profile.layers import Layer, Profile, chain, read
from pipeline.topology.levels import Topology, parse_topology

PROFILES = Path(__file__).resolve().parents[2] / "shared" / "data" / "profiles"
CLUSTERS = {"1x4 A": "4x12e9", "4x4 A": "4x12e9,4x1.25e9", "2x8 B": "8x30e9,2x3.125e9"}
RELEASED_MS = {
    "vgg16": (170.08, 66.89, 65.77),
    "alexnet": (22.19, 15.10, 9.68),
    "resnet18": (65.92, 23.49, 18.36),
    "gnmt": (25.87, 11.08, 8.86),
}
# Thesis, table 5.1: plan and speedup over data parallelism. gnmt's profile is of the 8-layer model; resnet18
# stands beside ResNet-50, which is another model.
PRINTED = {
    "vgg16": ("3-1 2.14", "12-1 4.78", "15-1 4.33"),
    "alexnet": ("3-1 3.40", "12-1 4.62", "15-1 2.70"),
    "resnet18": ("", "(ResNet-50: data parallel 1)", "(ResNet-50: data parallel 1)"),
    "gnmt": ("straight 3.26", "straight 2.67", "straight 2.14"),
}


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    repeats = 2 if parser.parse_args().quick else 5
    print(f"{computer()}; {versions('Python', 'numpy', 'numba')}")
    if PROFILES.exists():
        against_released()
        table_5_1()
    else:
        print(f"skipped the recorded profiles: {PROFILES} is not here")
    speeds(repeats)


def against_released() -> None:
    """ms per minibatch at the released optimizer's cost model."""
    print("\nms per minibatch at the released optimizer's cost model")
    print(f"{'model':<10} {'cluster':<8} {'ours':>8} {'prefixes':>9} {'released':>9} {'ratio':>6}  plan")
    for name, released in RELEASED_MS.items():
        profile = read(PROFILES / f"{name}.json")
        for (cluster, text), theirs in zip(CLUSTERS.items(), released, strict=True):
            plan = partition(profile, parse_topology(text), cost_model="released")
            prefix = partition(profile, parse_topology(text), cost_model="released", prefixes_only=True)
            ours = plan.seconds_per_minibatch * 1e3
            print(
                f"{name:<10} {cluster:<8} {ours:>8.2f} {prefix.seconds_per_minibatch * 1e3:>9.2f} {theirs:>9.2f} "
                f"{theirs / ours:>6.2f}  {plan.config}"
            )


def table_5_1() -> None:
    """Plans and predicted speedups for the profiles at hand, beside the printed ones."""
    print(
        "\ntable 5.1: plan and speedup over data parallelism; `model`: by the cost model, `simulated`: both run"
    )
    print(
        f"{'model':<10} {'cluster':<8} {'cost model':<10} {'plan':<22} {'model':>7} {'simulated':>9}  printed"
    )
    for name, printed in PRINTED.items():
        profile = read(PROFILES / f"{name}.json")
        for (cluster, text), thesis in zip(CLUSTERS.items(), printed, strict=True):
            topology = parse_topology(text)
            for model in ("thesis", "released"):
                plan = partition(profile, topology, cost_model=model)
                whole = data_parallel_plan(profile, topology)
                assert whole is not None
                alone_s = simulate_long(whole, 2).seconds_per_minibatch()
                ours_s = simulate_long(plan, best_in_flight(plan)).seconds_per_minibatch()
                print(
                    f"{name:<10} {cluster:<8} {model:<10} {plan.config:<22} {plan.speedup:>6.2f}x "
                    f"{alone_s / ours_s:>8.2f}x  {thesis}"
                )


def best_of(repeats: int, profile: Profile, topology: Topology, model: str) -> tuple[float, float]:
    """(wall, CPU) seconds, the best of each."""
    partition(profile, topology, cost_model=model)
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        partition(profile, topology, cost_model=model)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def ladder(branches: int, depth: int, rng: np.random.Generator) -> Profile:
    """Parallel branches between a first and a last layer: (depth + 1)^branches + 2 closed sets."""
    layers = [Layer("first", 1e-3, 2e-3, 1e6, 1e6)]
    edges = []
    for branch in range(branches):
        before = 0
        for step in range(depth):
            layers.append(Layer(f"{branch}.{step}", *rng.exponential(1e-3, 2), *rng.exponential(1e6, 2)))
            edges.append((before, len(layers) - 1))
            before = len(layers) - 1
        edges.append((before, 1 + branches * depth))
    layers.append(Layer("last", 1e-3, 2e-3, 1e6, 1e6))
    return Profile("ladder", tuple(layers), tuple(edges))


def speeds(repeats: int) -> None:
    """Seconds from a profile to a plan, compiled."""
    rng = np.random.default_rng(0)

    def random_chain(n: int) -> Profile:
        return chain(rng.exponential(2e-3, n), rng.exponential(5e6, n), rng.exponential(3e6, n))

    cases = [
        ("chain of 1,500 layers, 4x4", random_chain(1500), "4x12e9,4x1.25e9", 1.5),
        ("chain of 300 layers, 8x8x8", random_chain(300), "8x30e9,8x12e9,8x3e9", 0.4),
        ("two branches of 22 layers, 4x4", ladder(2, 22, rng), "4x12e9,4x1.25e9", 1.0),
        ("three branches of 7 layers, 4x4", ladder(3, 7, rng), "4x12e9,4x1.25e9", 1.0),
    ]
    print(f"\nfrom profile to plan, best of {repeats}, compiled")
    print(f"{'case':<34} {'states':>6} {'cost model':<10} {'wall s':>7} {'CPU s':>7} {'limit s':>7}")
    for name, profile, text, limit in cases:
        states = len(closed_sets(profile, 2_000))
        for model in ("thesis", "released"):
            wall, cpu = best_of(repeats, profile, parse_topology(text), model)
            print(f"{name:<34} {states:>6} {model:<10} {wall:>7.3f} {cpu:>7.3f} {limit:>7.1f}")


if __name__ == "__main__":
    main()
