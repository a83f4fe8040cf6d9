"""Pipelines that train, against torch.distributed.pipelining, one process and DDP, on two processes of one thread each.

    python benchmarks/bench_pipeline_run.py [--quick] [--microbatches 4,8,16] [--models mlp,transformer]

Every figure is a ratio of seconds per minibatch of two things that ran in turn in this very run; below 1 is faster. All
parties compute the same loss on the same model and take the same SGD step, without data loading. The limits are
what the project aims at.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from measuring import computer, free_port, versions
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

RATE = 1e-3
# Model: microbatch. The transformer reads tokens of 128 places.
MICROBATCH = {"mlp": 64, "transformer": 4}
WIDTH, PLACES, WORDS = 256, 128, 512
LIMITS = {
    ("mlp", "flush", "torch 1F1B"): {4: 1.0, 8: 1.0, 16: 1.0},
    ("transformer", "flush", "torch 1F1B"): {4: 1.0, 8: 1.0, 16: 1.0},
    ("mlp", "zero-bubble", "torch 1F1B"): {4: 0.82, 8: 0.82, 16: 0.82},
    ("transformer", "zero-bubble", "torch 1F1B"): {4: 0.90, 8: 0.95, 16: 0.99},
    ("mlp", "zero-bubble", "one process"): {4: 0.62, 8: 0.58, 16: 0.56},
    ("transformer", "zero-bubble", "one process"): {4: 0.62, 8: 0.58, 16: 0.56},
}
STASH_LIMITS = {"mlp": (0.65, 0.45), "transformer": (0.54, 0.78)}


class Block(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_again = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[items, places, width] -> the same."""
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, WIDTH // 4)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm_again(x))))


class Head(nn.Module):
    """Words' scores, with places and items as one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """[items, places, width] -> [items x places, words]."""
        return self.scores(x).flatten(0, 1)


def parts(kind: str) -> list[nn.Module]:
    """The model in the order of its forward; both parties cut it in the middle."""
    torch.manual_seed(0)
    if kind == "mlp":
        return [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)]
    return [nn.Embedding(WORDS, WIDTH), *(Block() for _ in range(4)), Head()]


def cut_at(kind: str) -> int:
    """How many of the parts the first stage has."""
    return 4 if kind == "mlp" else 3


def loss(kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The mean over a microbatch."""
    if kind == "mlp":
        return functional.mse_loss
    return lambda output, target: functional.cross_entropy(output, target.flatten())


def data(kind: str, items: int) -> tuple[Tensor, Tensor]:
    """Input and target of a minibatch."""
    torch.manual_seed(1)
    if kind == "mlp":
        return torch.randn(items, 1024), torch.randn(items, 1024)
    return torch.randint(0, WORDS, (items, PLACES)), torch.randint(0, WORDS, (items, PLACES))


def training() -> Any:
    """(model, loss, minibatch) for `proteus pipeline run`; the environment says which."""
    kind, items = os.environ["BENCH_MODEL"], int(os.environ["BENCH_ITEMS"])
    x, target = data(kind, items)
    return nn.Sequential(*parts(kind)), loss(kind), lambda number: ((x,), (target,))


def ours(kind: str, mode: str, microbatches: int, minibatches: int) -> list[float]:
    """Seconds of each minibatch of our runner, two stages."""
    from pipeline.run.config import PipelineConfig
    from pipeline.run.job import Job, StageShape
    from pipeline.run.processes import run_processes
    from pipeline.run.result import read_report

    stash = mode == "stash"
    os.environ |= {"BENCH_MODEL": kind, "BENCH_ITEMS": str(MICROBATCH[kind] * microbatches)}
    config = {
        "training": f"{Path(__file__).resolve()}:training",
        "minibatches": minibatches,
        "mode": "stash" if stash else "flush",
        "order": "zero-bubble" if mode == "zero-bubble" else "1f1b",
        "microbatches": microbatches,
        "optimizer": {"kind": "SGD", "lr": RATE},
    }
    job = Job(PipelineConfig.model_validate(config))
    names = [layer.name for layer in job.traced.layers]
    first = next(i for i, name in enumerate(names) if name.split(".")[0].split()[0] == str(cut_at(kind)))
    shape = StageShape((first, len(names)), (1, 1), (False, False))
    with tempfile.TemporaryDirectory() as folder:
        run_processes(job, shape, Path(folder))
        spans = read_report(Path(folder) / "worker-0.json").spans
    parts_each = 1 if stash else microbatches
    ends = {}
    for span in spans:
        ends[(span.action.minibatch - 1) // parts_each] = span.end_s
    times = [ends[number] for number in sorted(ends)]
    return [b - a for a, b in itertools.pairwise(times)][1:]


def timed(optimizer: torch.optim.Optimizer, minibatches: int, backward: Callable[[], object]) -> list[float]:
    """Seconds of each minibatch: its gradients, and the optimizer's step; without the first two."""
    times = []
    for _ in range(minibatches):
        begin = time.perf_counter()
        optimizer.zero_grad()
        backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    return times[2:]


def one_process(kind: str, microbatches: int, minibatches: int) -> list[float]:
    """Seconds of each minibatch of plain torch in one process of one thread, microbatched."""
    model, judge = nn.Sequential(*parts(kind)), loss(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    x, target = data(kind, MICROBATCH[kind] * microbatches)

    def backward() -> None:
        for a, b in zip(x.chunk(microbatches), target.chunk(microbatches), strict=True):
            (judge(model(a), b) / microbatches).backward()

    return timed(optimizer, minibatches, backward)


def torch_1f1b(rank: int, kind: str, microbatches: int, minibatches: int) -> list[float]:
    """Seconds of each minibatch of torch's Schedule1F1B over gloo."""
    whole, judge = parts(kind), loss(kind)
    mine = nn.Sequential(*(whole[: cut_at(kind)] if rank == 0 else whole[cut_at(kind) :]))
    stage = PipelineStage(mine, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, microbatches, loss_fn=judge)
    optimizer = torch.optim.SGD(mine.parameters(), lr=RATE)
    x, target = data(kind, MICROBATCH[kind] * microbatches)

    def step() -> None:
        schedule.step(x) if rank == 0 else schedule.step(target=target, losses=[])

    return timed(optimizer, minibatches, step)


def ddp(rank: int, kind: str, minibatches: int) -> list[float]:
    """Seconds of each minibatch of DDP over gloo, half of the items on each process."""
    model, judge = DistributedDataParallel(nn.Sequential(*parts(kind))), loss(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    x, target = (tensor.chunk(2)[rank] for tensor in data(kind, MICROBATCH[kind]))
    return timed(optimizer, minibatches, lambda: judge(model(x), target).backward())


def peer() -> None:
    """The body of a process of the peer: `--peer WHAT RANK PORT MODEL MICROBATCHES MINIBATCHES`."""
    what, rank, port, kind, microbatches, minibatches = sys.argv[2:]
    torch.set_num_threads(1)
    if what == "one":
        found = one_process(kind, int(microbatches), int(minibatches))
    else:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        dist.init_process_group("gloo", rank=int(rank), world_size=2)
        if what == "1f1b":
            found = torch_1f1b(int(rank), kind, int(microbatches), int(minibatches))
        else:
            found = ddp(int(rank), kind, int(minibatches))
        dist.barrier()
        dist.destroy_process_group()
    print(" ".join(map(repr, found)))


def peers(what: str, kind: str, microbatches: int, minibatches: int) -> list[float]:
    """Start a peer's processes; the seconds of the first."""
    from pipeline.run.processes import MALLOC

    port = free_port()
    children = [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--peer",
                *map(str, (what, rank, port, kind, microbatches, minibatches)),
            ],
            stdout=subprocess.PIPE,
            env={**MALLOC, **os.environ},
        )
        for rank in range(1 if what == "one" else 2)
    ]
    texts = [child.communicate()[0].decode() for child in children]
    return [float(word) for word in texts[0].split()]


def round_of(kind: str, microbatches: int, minibatches: int) -> dict[str, float]:
    """Each party once, in turn: median seconds of a minibatch."""
    run = {
        "torch 1F1B": lambda: peers("1f1b", kind, microbatches, minibatches),
        "flush": lambda: ours(kind, "flush", microbatches, minibatches),
        "one process": lambda: peers("one", kind, microbatches, minibatches),
        "zero-bubble": lambda: ours(kind, "zero-bubble", microbatches, minibatches),
    }
    return {name: statistics.median(measure()) for name, measure in run.items()}


def stash_round(kind: str, minibatches: int) -> dict[str, float]:
    """As `round_of` for stashing, whose minibatch is one microbatch."""
    run = {
        "one process": lambda: peers("one", kind, 1, minibatches),
        "stash": lambda: ours(kind, "stash", 1, minibatches),
        "DDP": lambda: peers("ddp", kind, 1, minibatches),
    }
    return {name: statistics.median(measure()) for name, measure in run.items()}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--models", default="mlp,transformer")
    parser.add_argument("--microbatches", default="4,8,16")
    arguments = parser.parse_args()
    rounds, minibatches = (1, 12) if arguments.quick else (3, 30)
    print(f"{computer()}; {versions('Python', 'torch')}; {rounds} rounds of {minibatches} minibatches")
    torch.set_num_threads(1)
    print(f"\n{'model':<12} {'M':>3} {'ours':<12} {'against':<12} {'ratio':>6} {'limit':>6}")
    for kind in arguments.models.split(","):
        for microbatches in map(int, arguments.microbatches.split(",")):
            found = [round_of(kind, microbatches, minibatches) for _ in range(rounds)]
            for (model, mine, other), limits in LIMITS.items():
                if model == kind:
                    ratio = statistics.median(each[mine] / each[other] for each in found)
                    limit = limits.get(microbatches, float("nan"))
                    print(
                        f"{kind:<12} {microbatches:>3} {mine:<12} {other:<12} {ratio:>6.2f} {limit:>6.2f}",
                        flush=True,
                    )
    for kind in arguments.models.split(","):
        found = [stash_round(kind, 5 * minibatches) for _ in range(rounds)]
        for other, limit in zip(("one process", "DDP"), STASH_LIMITS[kind], strict=True):
            ratio = statistics.median(each["stash"] / each[other] for each in found)
            print(f"{kind:<12} {'-':>3} {'stash':<12} {other:<12} {ratio:>6.2f} {limit:>6.2f}", flush=True)


if __name__ == "__main__":
    peer() if sys.argv[1:2] == ["--peer"] else main()
