"""A step of data-parallel training: the engine against torch's DistributedDataParallel over gloo.

Two processes on this machine, one thread of computing each, the same modules, optimizer and minibatch. `mlp` and `cnn`:
64 items a process, so 128 a clock, SGD with momentum. `gpt` and `gpt-bf16`: a transformer, 8 sequences a process, AdamW
with two groups (matrices decay, the rest does not), the gradient's norm limited to 1, without and with bfloat16.
Everything is measured in turn, for several rounds; a time is the median of the rounds' medians, a ratio the median of
the rounds' ratios. CPU is that of both processes together per step, all their threads: it says what the work is where
other programs share the machine.
`python benchmarks/bench_ddp.py [--quick] [--models mlp,cnn,gpt,gpt-bf16] [--partitions 2] [--rounds 5]`.

"replicas": `optimizer.kind: torch` with an all-reduce, so parameters and optimizer state stay where they are used;
"sharded": each machine has the state of a share of the parameters.

The limit: the model's own step in one process on its own share (no exchange at all), while the other does the same.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial

import child_machines  # first: it sets the environment that the processes begin with
import ddp_peer
from child_machines import (
    TASKS,
    WARM_UP,
    WORLD,
    Engine,
    Pair,
    Sample,
    run_engine,
    serve_machine,
)
from ddp_peer import Options, Task
from measuring import computer, free_port, median_ratio

STEPS = {"mlp": 12, "cnn": 150, "gpt": 12, "gpt-bf16": 12}
QUICK_STEPS = {"mlp": 6, "cnn": 60, "gpt": 6, "gpt-bf16": 6}


def memory_of(task: Task, slices: list[int], partitions: int) -> None:
    """Print the peak memory of a process, each variant in processes of its own."""
    parameters_mb = sum(p.numel() for p in task.build().parameters()) * 4 / 1e6
    print(f"\nmemory, {task.name}: {'MB':>40}{'/ parameters':>14}")
    for options in (Options(), Options(25)):
        pair = Pair(ddp_peer.serve, WORLD, free_port())
        show_memory(f"DDP {options}", child_machines.run_ddp(pair, task, options, WARM_UP + 3), parameters_mb)
        pair.end()
    for count in (None, *slices):
        pair = Pair(serve_machine)
        engine = Engine(count, partitions)
        show_memory(f"engine, {engine}", run_engine(pair, task, engine, WARM_UP + 3), parameters_mb)
        pair.end()


def show_memory(label: str, sample: Sample, parameters_mb: float) -> None:
    print(f"  {label:62}{sample.memory_mb:9.0f}{sample.memory_mb / parameters_mb:14.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds, steps and variants: under a minute"
    )
    parser.add_argument("--models", default="mlp,cnn")
    parser.add_argument("--partitions", type=int, default=WORLD)
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--slices", default=None, help="deterministic variants, such as 2,4,8; 0: only the other"
    )
    parser.add_argument("--json", action="store_true", help="the figures as JSON as well")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    slices = [
        int(n) for n in (arguments.slices or ("2" if arguments.quick else "2,4,8")).split(",") if int(n)
    ]
    buckets = (25,) if arguments.quick else (5, 25, 50, 100)
    print(
        f"{computer('torch', 'python')}; {WORLD} processes, one thread each; {rounds} rounds",
        flush=True,
    )
    peers = Pair(ddp_peer.serve, WORLD, free_port())
    figures = {}
    try:
        for name in arguments.models.split(","):
            task = TASKS[name]
            steps = WARM_UP + (QUICK_STEPS if arguments.quick else STEPS)[name]
            variants: dict[str, Callable[[], Sample]] = {
                "no exchange (limit)": partial(child_machines.run_ddp, peers, task, None, steps)
            }
            for options in (Options(), *map(Options, buckets)):
                variants[f"DDP {options}"] = partial(child_machines.run_ddp, peers, task, options, steps)
            by_sums = (arguments.partitions,) if arguments.quick else (1, WORLD, 4 * WORLD)
            engines = {
                f"engine, {engine}": engine
                for engine in (
                    *(Engine(count, arguments.partitions) for count in (None, *slices)),
                    *(Engine(None, partitions, "allreduce") for partitions in by_sums),
                    *(Engine(None, partitions, "allreduce", is_resident=True) for partitions in by_sums),
                    Engine(None, 4 * WORLD, "allreduce", is_resident=True, is_sharded=True),
                )
            }
            found: dict[str, list[Sample]] = {label: [] for label in (*variants, *engines)}
            for _ in range(rounds):
                for label, measure in variants.items():
                    found[label].append(measure())
                # New processes in each round: torch keeps the modules of runs that are over.
                machines = Pair(serve_machine)
                for label, engine in engines.items():
                    found[label].append(run_engine(machines, task, engine, steps))
                machines.end()
                print(f"  round {len(found[label])} of {rounds} is done", flush=True)
            figures[name] = report(task, found)
    finally:
        peers.end()
    if not arguments.quick:
        memory_of(TASKS["mlp"], slices[:1], arguments.partitions)
    if arguments.json:
        print(json.dumps(figures))


def report(task: Task, found: dict[str, list[Sample]]) -> dict[str, float]:
    """Print the table of a model; ratios are medians of the rounds' ratios."""
    seconds = {label: [sample.seconds for sample in samples] for label, samples in found.items()}
    cpu_s = {label: statistics.median(sample.cpu_s for sample in samples) for label, samples in found.items()}
    tuned = [label for label in seconds if "bucket_cap" in label]
    best = min(tuned, key=lambda label: statistics.median(seconds[label]))

    def ratio(label: str, to: str) -> float:
        return median_ratio(seconds[label], seconds[to])

    print(
        f"\n{task.name}\n  {'':62}{'ms':>9}{'/ DDP':>8}{'/ best':>8}{'/ limit':>9}{'CPU ms':>9}{'/ DDP':>8}"
    )
    for label in seconds:
        columns = [ratio(label, to) for to in ("DDP defaults", best, "no exchange (limit)")]
        print(
            f"  {label:62}{statistics.median(seconds[label]) * 1e3:9.1f}"
            f"{columns[0]:8.2f}{columns[1]:8.2f}{columns[2]:9.2f}"
            f"{cpu_s[label] * 1e3:9.1f}{cpu_s[label] / cpu_s['DDP defaults']:8.2f}"
        )
    return {label: statistics.median(values) for label, values in seconds.items()}


if __name__ == "__main__":
    main()
