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
import gc
import json
import multiprocessing
import os
import platform
import secrets
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from agileml.events.run import ClockDone

# Before the children start: freed arrays stay with the process, for the engine and for the peer alike.
os.environ |= {
    "MALLOC_TRIM_THRESHOLD_": "-1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(1 << 26),
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

import ddp_peer
import numpy as np
import torch
from ddp_peer import Options, Task, Training, items, resident_mb

from agileml.apps.torch.module import TorchModule
from agileml.config.job import from_values
from agileml.core.protocol.inputs import NodeUp
from agileml.events.terms import Tier
from agileml.net.keys import KeyPair
from agileml.process.head import Head
from agileml.process.machine import Machine
from agileml.process.record_store import FileStore
from agileml.process.spec import RunSpec

WORLD = 2
BATCH = 64
GPT = {"vocabulary": 1000, "tokens": 32, "width": 320, "layers": 8, "heads": 8}
LIMIT_S = 300.0
WARM_UP = 3  # steps that are not counted: DistributedDataParallel makes its buckets anew after the first
TASKS = {
    "mlp": Task("MLP, 25.0 M parameters", "mlp", {"sizes": (2500,) * 5}, (2500,), 2500, BATCH, 512),
    "cnn": Task("CNN, 0.2 M parameters", "cnn", {}, (1, 28, 28), 10, BATCH, 4096),
    "gpt": Task("transformer, 10.5 M", "gpt", GPT, (32,), 1000, 8, 256, Training("adamw")),
    "gpt-bf16": Task(
        "transformer, bfloat16", "gpt", GPT, (32,), 1000, 8, 256, Training("adamw", autocast=True)
    ),
}
STEPS = {"mlp": 12, "cnn": 150, "gpt": 12, "gpt-bf16": 12}
QUICK_STEPS = {"mlp": 6, "cnn": 60, "gpt": 6, "gpt-bf16": 6}


def data_of(task: Task, world: int) -> Any:
    """The items of all processes; the engine deals them out."""
    parts = [items(task, rank) for rank in range(world)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True)), None


def application(task: Task, world: int = WORLD) -> TorchModule:
    return TorchModule(build=task.build, dataset=partial(data_of, task, world))


@dataclass(frozen=True)
class Engine:
    """How the engine runs. `slices` None: not deterministic, one sum per worker and clock. `is_resident`: optimizers of
    torch step replicas."""

    slices: int | None
    partitions: int
    exchange: str = "servers"
    is_resident: bool = False
    is_sharded: bool = False

    def __str__(self) -> str:
        if self.exchange == "allreduce":
            replicas = ", replicas" * self.is_resident + ", sharded" * self.is_sharded
            return f"exchange: allreduce, {self.partitions} partitions{replicas}"
        return "not deterministic" if self.slices is None else f"deterministic, {self.slices} slices"

    def optimizer(self, task: Task) -> dict[str, Any]:
        if task.training.kind == "momentum":
            momentum = {"learning_rate": 0.001, "momentum": 0.9}
            if not self.is_resident:
                return {"kind": "momentum", **momentum}
            rate = momentum.pop("learning_rate")
            return {**self.of_torch, "name": "SGD", "learning_rate": rate, "arguments": momentum}
        vectors = [name for name, p in task.build().named_parameters() if p.ndim <= 1]
        groups = [{"parameters": vectors, "weight_decay": 0.0}]
        shared = {"learning_rate": 0.0003, "clip_norm": 1.0, "groups": groups}
        if not self.is_resident:
            return {"kind": "adamw", "weight_decay": 0.1, **shared}
        return {**self.of_torch, "name": "AdamW", "arguments": {"weight_decay": 0.1}, **shared}

    @property
    def of_torch(self) -> dict[str, Any]:
        return {"kind": "torch", "sharded": self.is_sharded}

    def config(self, clocks: int, task: Task) -> dict[str, Any]:
        return {
            "application": "torch",
            "model": {
                "batch_size": WORLD * task.batch,
                "autocast": "bfloat16" if task.training.autocast else None,
            },
            "optimizer": self.optimizer(task),
            "clocks": clocks,
            "slices": self.slices or WORLD,
            "deterministic": self.slices is not None,
            "exchange": self.exchange,
            "machines": {"reliable": WORLD, "transient": 0, "max": WORLD},
            "stage": 1,
            "partitions": self.partitions,
            "cuts": {"every_s": 1e6, "max_clocks": 1 << 30},
            "heartbeat": {"interval_s": 0.5, "timeout_s": 30.0},
        }


def serve_machine(pipe: Connection, rank: int) -> None:
    """One machine after the other, as the parent says, until None comes."""
    torch.set_num_threads(1)
    torch.nn.Linear(8, 8)(torch.zeros(8, 8)).sum().backward()
    idle = resident_mb()["rss"]
    while (asked := pipe.recv()) is not None:
        spec, halves, head = asked
        keys = KeyPair(*halves)
        clock = CpuClock()
        machine = Machine(f"m{rank}", spec, spec.build(), "127.0.0.1", keys, head)
        machine.start()
        pipe.send(machine.address)
        pipe.recv()
        machine.stop()
        pipe.send((clock.stop(), resident_mb()["peak"] - idle))
        del machine, spec, asked
        gc.collect()  # else a machine's arrays, which refer to each other, stay until the next ones fill the memory


class CpuClock:
    """What CPU time this process had used at what wall time, looked up 20 times a second."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.05):
            self._seen.append((time.time(), time.process_time()))

    def stop(self) -> list[tuple[float, float]]:
        """All pairs of (wall time, CPU seconds)."""
        self._stopping.set()
        self._thread.join()
        return self._seen


class Pair:
    """Children that are told the same, two of them. is_leaf: they have no children of their own."""

    def __init__(
        self, target: Callable[..., None], *arguments: Any, world: int = WORLD, is_leaf: bool = True
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes = []
        self.children = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            child = context.Process(target=target, args=(theirs, rank, *arguments), daemon=is_leaf)
            child.start()
            theirs.close()
            self.pipes.append(ours)
            self.children.append(child)

    def tell(self, what: Any) -> None:
        for pipe in self.pipes:
            pipe.send(what)

    def answers(self) -> list[Any]:
        return [pipe.recv() for pipe in self.pipes]

    def end(self) -> None:
        self.tell(None)
        for child in self.children:
            child.join(10)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@dataclass(frozen=True)
class Sample:
    """Of a step: median wall seconds, mean CPU seconds of both processes together. Memory: peak of a process, in MB
    above an idle one; only true of what a process runs first, since freed memory stays with it (see memory_of)."""

    seconds: float
    cpu_s: float
    memory_mb: float


def run_ddp(pair: Pair, task: Task, options: Options | None, steps: int) -> Sample:
    pair.tell((task, options, steps))
    answers = pair.answers()
    return Sample(
        statistics.median(s for seconds, _ in answers for s, _ in seconds[WARM_UP:]),
        sum(statistics.fmean(cpu_s for _, cpu_s in seconds[WARM_UP:]) for seconds, _ in answers),
        max(memory for _, memory in answers),
    )


def run_engine(pair: Pair, task: Task, engine: Engine, steps: int, warm_up: int = WARM_UP) -> Sample:
    spec = RunSpec(secrets.token_hex(4), from_values(engine.config(steps, task)), application(task))
    ends, answers = train(pair, spec)
    seconds = [after - before for before, after in pairwise(ends)]
    first, last = ends[warm_up - 1], ends[-1]
    cpu_s = sum(np.diff(np.interp((first, last), *zip(*seen, strict=True)))[0] for seen, _ in answers)
    return Sample(
        statistics.median(seconds[warm_up - 1 :]),
        float(cpu_s) / (len(ends) - warm_up),
        max(memory for _, memory in answers),
    )


def train(
    machines: Pair, spec: RunSpec, note: Callable[[Any], object] = bool
) -> tuple[list[float], list[Any]]:
    """One run, the reliable machines first: when each clock was applied, and what `serve_machine` answers. `note` is
    called with each event."""
    keys = KeyPair.generate()
    with tempfile.TemporaryDirectory() as folder:
        head = Head(spec, len(machines.pipes), "127.0.0.1", keys, FileStore(Path(folder) / "records"))
        head.start()
        try:
            machines.tell((spec, (keys.public, keys.secret), head.address))
            for rank, address in enumerate(machines.answers()):
                tier = Tier.RELIABLE if rank < spec.config.machines.reliable else Tier.TRANSIENT
                head.register(address, NodeUp(f"m{rank}", tier, "", True))
            ends = ends_of_clocks(head, note)
        finally:
            machines.tell("stop")
            answers = machines.answers()
            head.stop()
    return ends, answers


def ends_of_clocks(head: Head, note: Callable[[Any], object]) -> list[float]:
    """When each clock was applied, in wall time, once all are."""
    ends = {}
    until_s = time.monotonic() + LIMIT_S
    while True:
        state = head.state()
        for happened in state.events:
            note(happened.event)
            if isinstance(happened.event, ClockDone):
                ends[happened.event.clock] = happened.at_s
        if state.halted is not None:
            sys.exit(f"the engine stopped: {state.halted.reason}\n{state.halted.trace}")
        if state.finished is not None:
            return [ends[clock] for clock in sorted(ends)]
        if time.monotonic() > until_s:
            sys.exit(f"the engine stood still at clock {state.clock}")
        time.sleep(0.1)  # each look takes the controller's lock, and time from the machines


def memory_of(task: Task, slices: list[int], partitions: int) -> None:
    """Print the peak memory of a process, each variant in processes of its own."""
    parameters_mb = sum(p.numel() for p in task.build().parameters()) * 4 / 1e6
    print(f"\nmemory, {task.name}: {'MB':>40}{'/ parameters':>14}")
    for options in (Options(), Options(25)):
        pair = Pair(ddp_peer.serve, WORLD, free_port())
        show_memory(f"DDP {options}", run_ddp(pair, task, options, WARM_UP + 3), parameters_mb)
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
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"torch {torch.__version__}, python {platform.python_version()}; "
        f"{WORLD} processes, one thread each; {rounds} rounds",
        flush=True,
    )
    peers = Pair(ddp_peer.serve, WORLD, free_port())
    figures = {}
    try:
        for name in arguments.models.split(","):
            task = TASKS[name]
            steps = WARM_UP + (QUICK_STEPS if arguments.quick else STEPS)[name]
            variants: dict[str, Callable[[], Sample]] = {
                "no exchange (limit)": partial(run_ddp, peers, task, None, steps)
            }
            for options in (Options(), *map(Options, buckets)):
                variants[f"DDP {options}"] = partial(run_ddp, peers, task, options, steps)
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
        return statistics.median(a / b for a, b in zip(seconds[label], seconds[to], strict=True))

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
