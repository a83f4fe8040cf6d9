"""The peer of bench_ddp and bench_gpu: one process of a DistributedDataParallel group, told what to train.

Over gloo on CPUs, over NCCL on GPUs.
"""

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from gpt import Gpt
from paused import paused
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from agileml.apps.torch.models import cnn, mlp


@dataclass(frozen=True)
class Training:
    """How a task is trained: SGD with momentum, or AdamW that decays matrices alone and limits the gradient's norm."""

    kind: str = "momentum"
    autocast: bool = False

    def optimizer(self, module: nn.Module, *, at_its_best: bool) -> torch.optim.Optimizer:
        if self.kind == "momentum":
            return torch.optim.SGD(module.parameters(), lr=0.001, momentum=0.9)
        matrices = [p for p in module.parameters() if p.ndim > 1]
        others = [p for p in module.parameters() if p.ndim <= 1]
        groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=0.0003, weight_decay=0.1, fused=at_its_best or None)

    @property
    def clip_norm(self) -> float | None:
        return None if self.kind == "momentum" else 1.0


@dataclass(frozen=True)
class Task:
    """A model, its input shape, and what one process does in a step."""

    name: str
    kind: str
    arguments: dict[str, Any]
    shape: tuple[int, ...]
    classes: int
    batch: int  # items of a step and process
    examples: int
    training: Training = Training()

    def build(self) -> nn.Module:
        return {"cnn": cnn, "mlp": mlp, "paused": paused, "gpt": Gpt}[self.kind](**self.arguments)


@dataclass(frozen=True)
class Options:
    """How DistributedDataParallel is called. `bucket_mb` None: its defaults for everything."""

    bucket_mb: int | None = None

    def __str__(self) -> str:
        if self.bucket_mb is None:
            return "defaults"
        return f"bucket_cap_mb={self.bucket_mb}, static_graph, gradient_as_bucket_view"

    def keywords(self) -> dict[str, Any]:
        if self.bucket_mb is None:
            return {}
        return {"bucket_cap_mb": self.bucket_mb, "static_graph": True, "gradient_as_bucket_view": True}


def items(task: Task, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Made items of a process: what is trained on does not matter, only its size."""
    generator = torch.Generator().manual_seed(rank)
    if task.kind == "gpt":
        tokens = torch.randint(task.classes, (task.examples, *task.shape), generator=generator)
        return tokens, tokens.roll(-1, 1)
    x = torch.randn(task.examples, *task.shape, generator=generator)
    return x, torch.randint(task.classes, (task.examples,), generator=generator)


def resident_mb() -> dict[str, float]:
    """Resident memory of this process now (rss) and at its highest (peak), in MB."""
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return {key: int(fields[name].split()[0]) / 1e3 for key, name in (("rss", "VmRSS"), ("peak", "VmHWM"))}


def device_mb() -> float:
    """The most memory of the GPU that tensors of this process took since the last call, in MB."""
    gc.collect()
    most = torch.cuda.max_memory_allocated() / 1e6
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return most


def steps_of(
    task: Task, options: Options | None, steps: int, rank: int, device: str = "cpu"
) -> list[tuple[float, float]]:
    """Seconds and CPU seconds of this process of each step. `options` None: the model alone, no exchange."""
    torch.manual_seed(0)
    module: nn.Module = task.build().to(device)
    if options is not None:
        module = DistributedDataParallel(module, **options.keywords())
    optimizer = task.training.optimizer(
        module, at_its_best=options is not None and options.bucket_mb is not None
    )
    x, y = items(task, rank)
    starts = task.examples // task.batch
    seconds = []
    for step in range(steps):
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        at = slice(step % starts * task.batch, (step % starts + 1) * task.batch)
        inputs, targets = (column[at].to(device) for column in (x, y))
        with torch.autocast(device, torch.bfloat16, enabled=task.training.autocast):
            loss = nn.functional.cross_entropy(module(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        if task.training.clip_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), task.training.clip_norm)
        optimizer.step()
        float(loss.detach())
        seconds.append((time.perf_counter() - begin_s, time.process_time() - begin_cpu_s))
    return seconds


def serve(pipe: Connection, rank: int, world: int, port: int, device: str = "cpu") -> None:
    """Answer (task, options, steps) as `answer` does."""
    answer(pipe, rank, world, port, steps_of, device)


def answer(
    pipe: Connection,
    rank: int,
    world: int,
    port: int,
    steps_of: Callable[..., list[tuple[float, float]]],
    device: str = "cpu",
) -> None:
    """Answer arguments of `steps_of` with (seconds and CPU seconds of each step, memory in MB) until None comes. The
    memory is the device's where that is a GPU."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=world)
    nn.Linear(8, 8)(torch.zeros(8, 8)).sum().backward()
    idle = resident_mb()["rss"]
    while (asked := pipe.recv()) is not None:
        dist.barrier()
        seconds = steps_of(*asked, rank, device)
        pipe.send((seconds, device_mb() if device == "cuda" else resident_mb()["peak"] - idle))
    dist.destroy_process_group()
