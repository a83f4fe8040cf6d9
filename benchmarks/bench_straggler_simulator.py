"""The simulator's speed and memory: FlexRR with 1,024 workers, 20 iterations, 100 checks each.

python benchmarks/bench_straggler_simulator.py [--quick]
"""

from __future__ import annotations

import argparse
import resource
import time

from straggler.simulate.patterns import Cluster, parse_pattern
from straggler.simulate.schemes import Experiment, parse_scheme, run_scheme


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    workers = 256 if quick else 1024
    experiment = Experiment(Cluster(workers, workers // 8))
    print(f"{workers} workers on {workers // 8} machines, 20 iterations, 100 checks; one core")
    print(f"{'pattern':>18}{'scheme':>10}{'CPU s':>8}{'messages':>10}{'over ideal':>12}{'peak MB':>9}")
    for pattern in ("power-law:11", "slow-worker:100", "slow-worker:200", "slow-worker:400"):
        for scheme in ("bsp", "flexrr"):
            begun = time.process_time()
            row, _ = run_scheme(parse_scheme(scheme), parse_pattern(pattern), experiment, 0)
            spent = time.process_time() - begun
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{pattern:>18}{scheme:>10}{spent:>8.2f}{row.messages:>10}{row.over_ideal:>12.3f}{peak:>9.0f}"
            )


if __name__ == "__main__":
    main()
