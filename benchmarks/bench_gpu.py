"""A step of data-parallel training on GPUs: the engine against torch's DistributedDataParallel over NCCL.

One process for each GPU. A transformer of 100 M parameters, 16 sequences of 512 tokens a process, AdamW with two groups
(matrices decay, the rest does not), the gradient's norm limited to 1, without and with bfloat16. Everything is measured
in turn, for several rounds; a time is the median of the rounds' medians, a ratio the median of the rounds' ratios.
Memory is the most of the GPU that tensors of a process took. Two more tables, of the engine alone, over NCCL: a loop
of the user's own against the class form, and cuts against none. With cuts a time is the mean over all steps, because a
cut makes some of them longer.
`python benchmarks/bench_gpu.py [--quick] [--parts step,loop,cuts] [--models gpt,gpt-bf16] [--rounds 5] [--gpus 1]`.

`--device cpu` goes through the same with a small model on the CPU, two processes: its times say nothing about GPUs.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import child_machines  # first: it sets the environment that the processes begin with
import ddp_peer
import torch
from child_machines import NO_CUTS, TASKS, WARM_UP, Pair, Sample, train
from ddp_peer import Options, Task, Training, device_mb
from measuring import computer, free_port

from agileml.config.job import from_values
from agileml.process.spec import NCCL_VARIABLES, RunSpec

GPT = {"vocabulary": 8192, "tokens": 512, "width": 768, "layers": 12, "heads": 12}
GPU_TASKS = {
    "gpt": Task("transformer, 98 M", "gpt", GPT, (512,), 8192, 16, 64, Training("adamw")),
    "gpt-bf16": Task(
        "transformer, 98 M, bfloat16", "gpt", GPT, (512,), 8192, 16, 64, Training("adamw", autocast=True)
    ),
}
TASKS_OF = {"cuda": GPU_TASKS, "cpu": TASKS}
STEPS, QUICK_STEPS = 30, 12
# With cuts, which come about once a second: so many times as many steps, behind steps in which the first cuts pin the
# memory that later ones use again.
CUT_STEPS, CUT_WARM_UP = 8, 96
LOOP = """
import torch
from bench_gpu import TASKS_OF
from child_machines import data_of
from torch.nn.functional import cross_entropy

import agileml

task = TASKS_OF[{device!r}][{task!r}]
model = task.build()
optimizer = task.training.optimizer(model, at_its_best=True)
trainer = agileml.Trainer()
data, _ = data_of(task, {world})
model, optimizer, loader = trainer.prepare(model, optimizer, data, batch_size={batch}, clip_norm=1.0)
for x, y in loader:
    with torch.autocast({device!r}, torch.bfloat16, enabled=task.training.autocast):
        loss = cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True)
class Variant:
    """How the engine runs."""

    label: str
    exchange: str
    backend: str = "gloo"
    is_resident: bool = True
    is_sharded: bool = False
    cuts: Mapping[str, float] = field(default_factory=NO_CUTS.copy)

    def on(self, device: str) -> Variant:
        """The same, over gloo where there is no GPU."""
        return self if device == "cuda" else replace(self, backend="gloo")

    def config(self, task: Task, clocks: int, world: int, device: str) -> dict[str, Any]:
        vectors = [name for name, p in task.build().named_parameters() if p.ndim <= 1]
        shared = {
            "learning_rate": 0.0003,
            "clip_norm": 1.0,
            "groups": [{"parameters": vectors, "weight_decay": 0.0}],
        }
        if self.is_resident:
            own = {
                "name": "AdamW",
                "arguments": {"weight_decay": 0.1, "fused": True},
                "sharded": self.is_sharded,
            }
            optimizer = {"kind": "torch", **own, **shared}
        else:
            optimizer = {"kind": "adamw", "weight_decay": 0.1, **shared}
        autocast = "bfloat16" if task.training.autocast else None
        return child_machines.job_values(
            clocks,
            world,
            model={"batch_size": world * task.batch, "autocast": autocast, "device": device},
            optimizer=optimizer,
            exchange=self.exchange,
            allreduce_backend=self.backend,
            trusted_network=True,
            machines={"reliable": world, "transient": 0, "max": world, "gpus": int(device == "cuda")},
            cuts=self.cuts,
            heartbeat={"interval_s": 0.5, "timeout_s": 60.0},
        )


VARIANTS = (
    Variant("engine, all-reduce over NCCL, replicas", "allreduce", "nccl"),
    Variant("engine, all-reduce over NCCL, replicas, sharded", "allreduce", "nccl", is_sharded=True),
    Variant("engine, all-reduce over gloo, replicas", "allreduce"),
    Variant("engine, servers", "servers", is_resident=False),
)


def serve_machine(pipe: Connection, rank: int, device: str) -> None:
    """A machine of the engine, on the GPU of its rank."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": str(rank), **NCCL_VARIABLES}
    child_machines.serve_machine(pipe, rank, device_mb if device == "cuda" else None)


def run_engine(pair: Pair, task: Task, variant: Variant, world: int, device: str, steps: int) -> Sample:
    config = from_values(variant.config(task, steps, world, device))
    spec = RunSpec(secrets.token_hex(4), config, child_machines.application(task, world))
    return child_machines.sample(*train(pair, spec))


def run_loop(pair: Pair, task: Task, variant: Variant, world: int, device: str, steps: int) -> Sample:
    """The same by a loop of the user's own, which brings its data and its optimizer."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        name = next(name for name, other in TASKS_OF[device].items() if other == task)
        script.write_text(LOOP.format(task=name, device=device, world=world, batch=world * task.batch))
        values = variant.config(task, steps, world, device)
        own = {
            "model": {"script": str(script), "device": device},
            "optimizer": {"kind": "torch", "sharded": variant.is_sharded},
        }
        spec = RunSpec(secrets.token_hex(4), from_values(values | own))
        return child_machines.sample(*train(pair, spec.settled(spec.build())))


def run_with_cuts(pair: Pair, task: Task, variant: Variant, world: int, device: str, steps: int) -> Sample:
    steps = CUT_WARM_UP + CUT_STEPS * (steps - WARM_UP)
    config = from_values(variant.config(task, steps, world, device))
    spec = RunSpec(secrets.token_hex(4), config, child_machines.application(task, world))
    ends, answers = train(pair, spec)
    seconds = (ends[-1] - ends[CUT_WARM_UP - 1]) / (len(ends) - CUT_WARM_UP)
    return replace(child_machines.sample(ends, answers), seconds=seconds)


Run = Callable[[Pair, Task, Variant, int, str, int], Sample]
OVER_NCCL = VARIANTS[0]
# Of a part: what is run, by its label; the first is what the others are compared with.
ALONE: dict[str, tuple[tuple[str, Run, Variant], ...]] = {
    "loop": (("class form", run_engine, OVER_NCCL), ("loop of the user's own", run_loop, OVER_NCCL)),
    "cuts": (
        ("no cuts", run_with_cuts, OVER_NCCL),
        ("cuts, defaults", run_with_cuts, replace(OVER_NCCL, cuts={})),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round of few steps")
    parser.add_argument("--parts", default="step,loop,cuts")
    parser.add_argument("--models", default="gpt,gpt-bf16")
    parser.add_argument("--exchanges", default="allreduce,servers", help="of the step")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--gpus", type=int, help="processes, one for each GPU (default: all)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    found = torch.cuda.device_count()
    if arguments.device == "cuda" and not 0 < (arguments.gpus or found) <= found:
        parser.error(f"found {found} GPUs, expected {arguments.gpus or 'one at least'}")
    world = arguments.gpus or (found if arguments.device == "cuda" else child_machines.WORLD)
    variants = [v for v in VARIANTS if v.exchange in arguments.exchanges.split(",")]
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    steps = WARM_UP + (QUICK_STEPS if arguments.quick else STEPS)
    card = torch.cuda.get_device_name() if arguments.device == "cuda" else "no GPU"
    print(
        f"{card}, CUDA {torch.version.cuda}, {computer('torch', 'python')}; {world} processes; "
        f"{rounds} rounds of {steps - WARM_UP} steps",
        flush=True,
    )
    parts = arguments.parts.split(",")
    for name in arguments.models.split(","):
        task = TASKS_OF[arguments.device][name]
        if "step" in parts:
            measure(task, variants, world, arguments.device, rounds, steps)
        for part in parts:
            if part in ALONE:
                compare(task, ALONE[part], world, arguments.device, rounds, steps)


def measure(
    task: Task, variants: Sequence[Variant], world: int, device: str, rounds: int, steps: int
) -> None:
    """The engine and its peers in turn, and the table of it."""
    ddp = {
        "no exchange (limit)": None,
        "DDP defaults": Options(),
        "DDP bucket_cap_mb=100, fused": Options(100),
    }
    found: dict[str, list[Sample]] = {}
    peers = Pair(ddp_peer.serve, world, free_port(), device, world=world)
    try:
        for _ in range(rounds):
            for label, options in ddp.items():
                found.setdefault(label, []).append(child_machines.run_ddp(peers, task, options, steps))
            # New processes in each round: torch keeps the modules of runs that are over.
            machines = Pair(serve_machine, device, world=world)
            for variant in variants:
                sample = run_engine(machines, task, variant.on(device), world, device, steps)
                found.setdefault(variant.label, []).append(sample)
            machines.end()
    finally:
        peers.end()
    columns = ("DDP defaults", "DDP bucket_cap_mb=100, fused", "no exchange (limit)")
    report(task, found, dict(zip(columns, ("/ DDP", "/ best", "/ limit"), strict=True)))


def compare(
    task: Task,
    runs: Sequence[tuple[str, Run, Variant]],
    world: int,
    device: str,
    rounds: int,
    steps: int,
) -> None:
    """Forms of the engine in turn, each other round in the opposite order, and the table of it."""
    found: dict[str, list[Sample]] = {}
    for number in range(rounds):
        machines = Pair(serve_machine, device, world=world)
        for label, run, variant in runs if number % 2 == 0 else reversed(runs):
            found.setdefault(label, []).append(run(machines, task, variant.on(device), world, device, steps))
        machines.end()
    first = runs[0][0]
    report(task, found, {first: f"/ {first}"})


def report(task: Task, found: dict[str, list[Sample]], columns: Mapping[str, str]) -> None:
    """columns: the heading of each label that all are compared with."""

    def ratios(label: str, to: str) -> list[float]:
        return [one.seconds / other.seconds for one, other in zip(found[label], found[to], strict=True)]

    headings = "".join(f"{heading:>21}" for heading in columns.values())
    print(f"\n{task.name}\n  {'':50}{'ms':>9}{headings}{'MB':>9}")
    for label, samples in found.items():
        cells = ""
        for to in columns:
            of = ratios(label, to)
            cells += f"{statistics.median(of):8.3f} ({min(of):.2f}-{max(of):.2f})"
        ms = statistics.median(sample.seconds for sample in samples) * 1e3
        memory_mb = max(sample.memory_mb for sample in samples)
        print(f"  {label:50}{ms:9.2f}{cells}{memory_mb:9.0f}", flush=True)


if __name__ == "__main__":
    main()
