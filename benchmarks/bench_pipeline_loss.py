"""Loss with PipeDream's weight stashing, and without it, beside plain SGD: the same minibatches, four stages.

    python benchmarks/bench_pipeline_loss.py [--quick]

All workers run in one process, with the bits of processes. Each cell is the mean loss over the last tenth of the
minibatches: the mean and the spread (largest less smallest) over seeds. Within noise: closer to plain SGD than its
own spread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.run.config import PipelineConfig
from pipeline.run.job import Job, StageShape
from pipeline.run.result import minibatch_losses, run_here
from pipeline.stages.cut import balanced_ends

MODES = {
    "plain SGD": ("stash", 1),
    "stash": ("stash", 4),
    "vertical sync": ("vertical", 4),
    "none": ("none", 4),
}
SETTINGS = {"cnn": {"lr": 0.02, "momentum": 0.9}, "language": {"lr": 0.02, "momentum": 0.9}}


class Residual(nn.Module):
    """x + norm(conv(relu(norm(conv(x))))), as in a ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[items, width, h, w] -> the same."""
        return functional.relu(x + self.body(x))


def cnn() -> Any:
    """A small ResNet on noisy pictures of ten kinds."""
    torch.manual_seed(int(os.environ["BENCH_SEED"]))
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        *(Residual(8) for _ in range(4)),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    kinds = torch.randn(10, 3, 8, 8, generator=torch.Generator().manual_seed(7))

    def minibatch(number: int) -> Any:
        generator = torch.Generator().manual_seed(number)
        target = torch.randint(0, 10, (16,), generator=generator)
        return (kinds[target] + 2.0 * torch.randn(16, 3, 8, 8, generator=generator),), (target,)

    return model, functional.cross_entropy, minibatch


class Causal(nn.Module):
    """A transformer block that sees what is before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.norm_again = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[items, places, width] -> the same."""
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(functional.gelu(self.up(self.norm_again(x))))


def language() -> Any:
    """A language model of a grammar of 24 words: each word has four likely next ones."""
    torch.manual_seed(int(os.environ["BENCH_SEED"]))
    model = nn.Sequential(nn.Embedding(24, 32), *(Causal(32) for _ in range(4)), nn.Linear(32, 24))
    after = torch.randint(0, 24, (24, 4), generator=torch.Generator().manual_seed(7))

    def minibatch(number: int) -> Any:
        generator = torch.Generator().manual_seed(number)
        words = [torch.randint(0, 24, (8,), generator=generator)]
        for _ in range(16):
            words.append(after[words[-1], torch.randint(0, 4, (8,), generator=generator)])
        text = torch.stack(words, 1)
        return (text[:, :-1],), (text[:, 1:],)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())

    return model, loss, minibatch


def final_loss(kind: str, mode: str, stages: int, minibatches: int) -> float:
    """Mean loss over the last tenth of a training."""
    config = {
        "training": f"{Path(__file__).resolve()}:{kind}",
        "minibatches": minibatches,
        "mode": "none" if mode == "none" else "stash",
        "vertical_sync": mode == "vertical",
        "optimizer": {"kind": "SGD", **SETTINGS[kind]},
    }
    job = Job(PipelineConfig.model_validate(config))
    ends = balanced_ends([1.0] * len(job.traced.layers), (1,) * stages)
    _, reports = run_here(job, StageShape(ends, (1,) * stages, (False,) * stages))
    return statistics.fmean(minibatch_losses(reports, 1)[-minibatches // 10 :])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 minibatches, two seeds")
    parser.add_argument("--models", default=",".join(SETTINGS))
    parser.add_argument("--trainings", default=",".join(MODES))
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--json", action="store_true", help="the rows as JSON as well, in the last line")
    arguments = parser.parse_args()
    minibatches, seeds = (100, 2) if arguments.quick else (500, 3)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores; Python {platform.python_version()}, torch {torch.__version__}; "
        f"{minibatches} minibatches, {seeds} seeds"
    )
    torch.set_num_threads(1)
    print(f"{'model':<10} {'training':<14} {'stages':>6} {'loss':>8} {'spread':>8}")
    rows = []
    for kind in arguments.models.split(","):
        for name in arguments.trainings.split(","):
            mode, stages = MODES[name]
            found = []
            for seed in range(arguments.seed, arguments.seed + seeds):
                os.environ["BENCH_SEED"] = str(seed)
                found.append(final_loss(kind, mode, stages, minibatches))
            spread = max(found) - min(found)
            print(
                f"{kind:<10} {name:<14} {stages:>6} {statistics.fmean(found):>8.4f} {spread:>8.4f}",
                flush=True,
            )
            rows.append({"model": kind, "training": name, "losses": found})
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
