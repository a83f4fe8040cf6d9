"""A step of data-parallel training on GPUs: the engine against torch's DistributedDataParallel over NCCL.

One process for each GPU. A transformer of 100 M parameters, 16 sequences of 512 tokens a process, AdamW with two groups
(matrices decay, the rest does not), the gradient's norm limited to 1, without and with bfloat16. Everything is measured
in turn, for several rounds; a time is the median of the rounds' medians, a ratio the median of the rounds' ratios.
Memory is the most of the GPU that tensors of a process took.
`python benchmarks/bench_gpu.py [--quick] [--models gpt,gpt-bf16] [--rounds 5] [--gpus 1]`.

`--device cpu` goes through the same with a small model on the CPU, two processes: its times say nothing about GPUs.
"""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import child_machines  # first: it sets the environment that the processes begin with
import ddp_peer
import torch
from child_machines import TASKS, WARM_UP, Pair, Sample, free_port, train
from ddp_peer import Options, Task, Training, device_mb

from agileml.config.job import from_values
from agileml.process.spec import NCCL_VARIABLES, RunSpec

GPT = {"vocabulary": 8192, "tokens": 512, "width": 768, "layers": 12, "heads": 12}
GPU_TASKS = {
    "gpt": Task("transformer, 98 M", "gpt", GPT, (512,), 8192, 16, 64, Training("adamw")),
    "gpt-bf16": Task(
        "transformer, 98 M, bfloat16", "gpt", GPT, (512,), 8192, 16, 64, Training("adamw", autocast=True)
    ),
}
STEPS, QUICK_STEPS = 30, 12


@dataclass(frozen=True)
class Variant:
    """How the engine runs."""

    label: str
    exchange: str
    backend: str = "gloo"
    is_resident: bool = True
    is_sharded: bool = False

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
        return {
            "application": "torch",
            "model": {
                "batch_size": world * task.batch,
                "autocast": "bfloat16" if task.training.autocast else None,
                "device": device,
            },
            "optimizer": optimizer,
            "clocks": clocks,
            "slices": world,
            "deterministic": False,
            "exchange": self.exchange,
            "allreduce_backend": self.backend,
            "trusted_network": True,
            "machines": {"reliable": world, "transient": 0, "max": world, "gpus": int(device == "cuda")},
            "stage": 1,
            "cuts": {"every_s": 1e6, "max_clocks": 1 << 30},
            "heartbeat": {"interval_s": 0.5, "timeout_s": 60.0},
        }


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round of few steps")
    parser.add_argument("--models", default="gpt,gpt-bf16")
    parser.add_argument("--exchanges", default="allreduce,servers")
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
        f"{card}, CUDA {torch.version.cuda}, {platform.machine()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}, torch {torch.__version__}, python {platform.python_version()}; {world} processes; "
        f"{rounds} rounds of {steps - WARM_UP} steps",
        flush=True,
    )
    peers = Pair(ddp_peer.serve, world, free_port(), arguments.device, world=world)
    try:
        for name in arguments.models.split(","):
            task = GPU_TASKS[name] if arguments.device == "cuda" else TASKS[name]
            measure(peers, task, variants, world, arguments.device, rounds, steps)
    finally:
        peers.end()


def measure(
    peers: Pair, task: Task, variants: Sequence[Variant], world: int, device: str, rounds: int, steps: int
) -> None:
    """Everything in turn, and the table of it."""
    ddp = {
        "no exchange (limit)": None,
        "DDP defaults": Options(),
        "DDP bucket_cap_mb=100, fused": Options(100),
    }
    found: dict[str, list[Sample]] = {}
    for _ in range(rounds):
        for label, options in ddp.items():
            sample = child_machines.run_ddp(peers, task, options, steps)
            found.setdefault(label, []).append(sample)
        # New processes in each round: torch keeps the modules of runs that are over.
        machines = Pair(serve_machine, device, world=world)
        for variant in variants:
            if variant.backend == "nccl" and device != "cuda":
                variant = replace(variant, backend="gloo")
            sample = run_engine(machines, task, variant, world, device, steps)
            found.setdefault(variant.label, []).append(sample)
        machines.end()
    report(task, found)


def report(task: Task, found: dict[str, list[Sample]]) -> None:
    def ratio(label: str, to: str) -> float:
        pairs = zip(found[label], found[to], strict=True)
        return statistics.median(one.seconds / other.seconds for one, other in pairs)

    columns = ("DDP defaults", "DDP bucket_cap_mb=100, fused", "no exchange (limit)")
    print(f"\n{task.name}\n  {'':50}{'ms':>9}{'/ DDP':>8}{'/ best':>8}{'/ limit':>9}{'MB':>9}")
    for label, samples in found.items():
        ratios = [ratio(label, to) for to in columns]
        ms = statistics.median(sample.seconds for sample in samples) * 1e3
        memory_mb = max(sample.memory_mb for sample in samples)
        print(
            f"  {label:50}{ms:9.2f}{ratios[0]:8.3f}{ratios[1]:8.3f}{ratios[2]:9.3f}{memory_mb:9.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
