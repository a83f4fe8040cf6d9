"""One machine that computes with two processes against two machines of one core, and against two threads of torch.

    python benchmarks/bench_whole_machine.py [--quick] [--rounds 3]

The same work on real Ray nodes of this computer, which needs two free cores: MLR (dense, BLAS) and a torch module. A
ratio is that of the median clocks of two runs of one round; of several rounds the median. All runs of MLR have the same
bits, which is checked. With `threads: auto` a machine of the torch module chooses one of both splits itself.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import cores, median_ratio, versions

import agileml
from agileml.events.run import ClockDone, SplitDecided
from agileml.events.schema import events_of, of_type
from agileml.runs.event_log import EVENTS, read_events

WARM = 14  # clocks that are not counted: with threads: auto two splits are tried in 12
MLR = {
    "application": "mlr",
    "data": {"kind": "blobs", "examples": 25_000, "features": 784, "classes": 10},
    "optimizer": {"kind": "sgd", "learning_rate": 0.05},
    "clocks_per_pass": 1,
}
TORCH = {
    "application": "torch",
    "data": {"kind": "digits", "shape": [1, 8, 8]},
    "model": {"module": "agileml.apps.torch.models:cnn", "arguments": {"size": 8}, "batch_size": 1024},
    "optimizer": {"kind": "sgd", "learning_rate": 0.01},
    "clocks_per_pass": 1,
    "deterministic": False,
}
ONE = {"reliable": 1, "transient": 0, "max": 2}
WHOLE, PAIR, HALF, THREADS = (
    "1 machine, 2 processes",
    "2 machines, 1 core each",
    "1 machine, 1 core",
    "1 machine, 2 threads",
)
AUTO = "1 machine, threads: auto"


def clock_s(values: dict[str, Any]) -> tuple[float, str]:
    """The median clock of a run, and its parameters."""
    with tempfile.TemporaryDirectory() as folder:
        result = agileml.run({"slices": 8, "stage": 1, **values}, out=str(Path(folder) / "run"))
        log = read_events(result.folder / EVENTS)
    for chosen in events_of(log, SplitDecided):
        print(f"threads: auto chose {chosen.workers} x {chosen.threads}: {chosen.reason}", flush=True)
    done = of_type(log, ClockDone)[WARM:]
    took_s = [each.event.seconds for each in done if each.event.seconds is not None]
    return statistics.median(took_s), str(result.summary["params_sha256"])


def ways(base: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The same job on the same two cores, and on one of them."""
    found = {
        WHOLE: {"machines": {**ONE, "cpus": 2}},
        PAIR: {"machines": {**ONE, "transient": 1}},
        HALF: {"machines": ONE},
    }
    if base["application"] == "torch":
        found[WHOLE]["model"] = {**base["model"], "threads": 1}
        found[AUTO] = {"machines": {**ONE, "cpus": 2}}
        found[THREADS] = {
            "machines": {**ONE, "cpus": 2, "workers": 1},
            "model": {**base["model"], "threads": 2},
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round, fewer clocks")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rounds, clocks = (1, 30) if arguments.quick else (arguments.rounds, 40)
    print(f"{versions('python')}, {cores()}")
    for base in (MLR, TORCH):
        seconds: dict[str, list[float]] = {}
        for _ in range(rounds):
            digests = set()
            for name, more in ways(base).items():
                took_s, digest = clock_s({**base, "clocks": clocks, **more})
                seconds.setdefault(name, []).append(took_s)
                digests.add(digest)
            assert base["application"] != "mlr" or len(digests) == 1, "the bits differ"
        for name, found in seconds.items():
            against = "" if name == WHOLE else f"  {WHOLE} / this: {median_ratio(seconds[WHOLE], found):.3f}"
            print(
                f"{base['application']:6}{name:26}{statistics.median(found) * 1e3:9.1f} ms{against}",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
