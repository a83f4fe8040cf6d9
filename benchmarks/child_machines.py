"""Machines of the engine, or peers, as children of this process that train what they are told, for benchmarks.

Import it first: it sets the environment that the processes begin with.
"""

import gc
import multiprocessing
import os
import secrets
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

from process_environment import ENVIRONMENT

# Before the children start: freed arrays stay with the process, for the engine and for the peer alike.
os.environ |= ENVIRONMENT

import numpy as np
import torch
from ddp_peer import Options, Task, Training, items, resident_mb

from agileml.apps.torch.module import TorchModule
from agileml.config.job import from_values
from agileml.core.protocol.inputs import NodeUp
from agileml.events.run import ClockDone
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
NO_CUTS = {"every_s": 1e6, "max_clocks": 1 << 30}
WARM_UP = 3  # steps that are not counted: DistributedDataParallel makes its buckets anew after the first
TASKS = {
    "mlp": Task("MLP, 25.0 M parameters", "mlp", {"sizes": (2500,) * 5}, (2500,), 2500, BATCH, 512),
    "cnn": Task("CNN, 0.2 M parameters", "cnn", {}, (1, 28, 28), 10, BATCH, 4096),
    "gpt": Task("transformer, 10.5 M", "gpt", GPT, (32,), 1000, 8, 256, Training("adamw")),
    "gpt-bf16": Task(
        "transformer, bfloat16", "gpt", GPT, (32,), 1000, 8, 256, Training("adamw", autocast=True)
    ),
}


def data_of(task: Task, world: int) -> Any:
    """The items of all processes; the engine deals them out."""
    parts = [items(task, rank) for rank in range(world)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True)), None


def application(task: Task, world: int = WORLD) -> TorchModule:
    return TorchModule(build=task.build, dataset=partial(data_of, task, world))


def job_values(clocks: int, world: int = WORLD, **more: Any) -> dict[str, Any]:
    """A config of a torch application on so many reliable machines, without cuts; `more`: other keys or values."""
    return {
        "application": "torch",
        "clocks": clocks,
        "slices": world,
        "deterministic": False,
        "machines": {"reliable": world, "transient": 0, "max": world},
        "stage": 1,
        "cuts": NO_CUTS,
        "heartbeat": {"interval_s": 0.5, "timeout_s": 30.0},
        **more,
    }


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
        autocast = "bfloat16" if task.training.autocast else None
        return job_values(
            clocks,
            model={"batch_size": WORLD * task.batch, "autocast": autocast},
            optimizer=self.optimizer(task),
            slices=self.slices or WORLD,
            deterministic=self.slices is not None,
            exchange=self.exchange,
            partitions=self.partitions,
        )


def serve_machine(pipe: Connection, rank: int, memory_mb: Callable[[], float] | None = None) -> None:
    """One machine after the other, as the parent says, until None comes. memory_mb: measures the memory that a run
    took; by default the process' own."""
    torch.set_num_threads(1)
    torch.nn.Linear(8, 8)(torch.zeros(8, 8)).sum().backward()
    idle = resident_mb()["rss"]
    while (asked := pipe.recv()) is not None:
        spec, halves, head = asked
        keys = KeyPair(*halves)
        clock = CpuClock()
        machine = Machine(f"m{rank}", spec, spec.build(), "127.0.0.1", keys, head)
        machine.start()
        pipe.send([machine.address])
        pipe.recv()
        machine.stop()
        pipe.send((clock.stop(), memory_mb() if memory_mb else resident_mb()["peak"] - idle))
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
    return sample(*train(pair, spec), warm_up)


def cpu_between(seen: list[tuple[float, float]], first_s: float, last_s: float) -> float:
    """CPU seconds of a process between two times. seen: (time, CPU seconds until then), as `train` answers."""
    spent = np.interp((first_s, last_s), *zip(*seen, strict=True))
    return float(spent[1] - spent[0])


def sample(ends: list[float], answers: list[Any], warm_up: int = WARM_UP) -> Sample:
    """Of what `train` returns: from one clock applied to the next, and the CPU of all processes meanwhile."""
    seconds = [after - before for before, after in pairwise(ends)]
    cpu_s = sum(cpu_between(seen, ends[warm_up - 1], ends[-1]) for seen, _ in answers)
    return Sample(
        statistics.median(seconds[warm_up - 1 :]),
        cpu_s / (len(ends) - warm_up),
        max(memory for _, memory in answers),
    )


def train(
    machines: Pair, spec: RunSpec, note: Callable[[Any], object] = bool, limit_s: float = LIMIT_S
) -> tuple[list[float], list[Any]]:
    """One run, the reliable machines first: when each clock was applied, and what `serve_machine` answers. `note` is
    called with each event."""
    keys, wanted = KeyPair.generate(), spec.config.machines
    count = wanted.reliable + wanted.transient
    with tempfile.TemporaryDirectory() as folder:
        head = Head(spec, count, "127.0.0.1", keys, FileStore(Path(folder) / "records"))
        head.start()
        try:
            machines.tell((spec, (keys.public, keys.secret), head.address))
            for rank, address in enumerate(address for each in machines.answers() for address in each):
                tier = Tier.RELIABLE if rank < wanted.reliable else Tier.TRANSIENT
                head.register(address, NodeUp(f"m{rank}", tier, True))
            ends = ends_of_clocks(head, note, limit_s)
        finally:
            machines.tell("stop")
            answers = machines.answers()
            head.stop()
    return ends, answers


def ends_of_clocks(head: Head, note: Callable[[Any], object], limit_s: float) -> list[float]:
    """When each clock was applied, in wall time, once all are."""
    ends = {}
    until_s = time.monotonic() + limit_s
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
