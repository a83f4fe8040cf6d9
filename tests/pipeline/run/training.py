"""Small trainings for the tests: (model, loss, minibatch)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.pipeline.stages.models import Language, Residual

BATCH = 8


def mlp() -> Any:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(6, 6), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(6, 3))

    def minibatch(number: int) -> Any:
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(BATCH, 6, generator=generator)
        return (x,), ((x[:, :3] > 0).int().sum(1).clamp(max=2).long(),)

    return model, functional.cross_entropy, minibatch


def wide() -> Any:
    """As `mlp`, large enough that its tensors count."""
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(128, 128), nn.ReLU()]

    def minibatch(number: int) -> Any:
        x = torch.randn(256, 128, generator=torch.Generator().manual_seed(number))
        return (x,), (x[:, :10].argmax(1),)

    return nn.Sequential(*layers, nn.Linear(128, 10)), functional.cross_entropy, minibatch


def heavy() -> Any:
    """Of few items and large weights."""

    def minibatch(number: int) -> Any:
        x = torch.randn(16, 192, generator=torch.Generator().manual_seed(number))
        return (x,), (x[:, :10].argmax(1),)

    return nn.Sequential(*(nn.Linear(192, 192) for _ in range(3))), functional.cross_entropy, minibatch


def widened() -> Any:
    """As `mlp`, with layers of the same names and other sizes."""
    model, loss, minibatch = mlp()
    model[2], model[4] = nn.Linear(6, 9), nn.Linear(9, 6)
    return model, loss, minibatch


def language() -> Any:
    def loss(output: dict[str, Tensor], target: Tensor) -> Tensor:
        return (
            functional.cross_entropy(output["scores"].flatten(0, 1), target.flatten()) + 0.1 * output["early"]
        )

    def minibatch(number: int) -> Any:
        generator = torch.Generator().manual_seed(number)
        tokens = torch.randint(0, 11, (BATCH, 5), generator=generator)
        return (tokens, torch.rand(BATCH, 5, generator=generator), True), ((tokens + 1) % 11,)

    return Language(0.2), loss, minibatch


def thirds() -> Any:
    """In float64, of a batch that three microbatches divide, with a loss of one element."""

    def minibatch(number: int) -> Any:
        x = torch.randn(6, 6, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        return (x,), (x[:, :3].argmax(1),)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target).reshape(1)

    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).double(), loss, minibatch


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.ones(8), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.middle(self.embedding(tokens)) * self.scale + torch.tensor([0.5]))


def with_ties() -> Any:
    """Of a model whose state dict has other names than its recording."""

    def minibatch(number: int) -> Any:
        tokens = torch.randint(0, 11, (BATCH,), generator=torch.Generator().manual_seed(number))
        return (tokens,), ((tokens + 1) % 11,)

    return Tied(), functional.cross_entropy, minibatch


def drawn() -> Any:
    """Its minibatches are drawn anew whenever one is asked for."""
    model, loss, minibatch = mlp()
    return model, loss, lambda number: minibatch(int(torch.randint(1000, (1,))))


def from_numpy() -> Any:
    """Its data is drawn by NumPy's own generator, and shuffled by Python's."""
    model, loss, _ = mlp()
    x = np.random.randn(4 * BATCH, 6).astype(np.float32)
    order = list(range(len(x)))
    random.shuffle(order)

    def minibatch(number: int) -> Any:
        mine = torch.from_numpy(x[order[number % 4 :: 4]])
        return (mine,), (mine[:, :3].argmax(1),)

    return model, loss, minibatch


def without_seed() -> Any:
    """Its data is another in every process."""
    model, loss, _ = mlp()
    x = torch.from_numpy(np.random.default_rng().normal(size=(BATCH, 6)).astype(np.float32))
    return model, loss, lambda number: ((x,), (x[:, :3].argmax(1),))


def residual() -> Any:
    def minibatch(number: int) -> Any:
        generator = torch.Generator().manual_seed(number)
        return (torch.randn(BATCH, 2, 5, 5, generator=generator),), (torch.arange(BATCH) % 3,)

    return Residual(), functional.cross_entropy, minibatch


def time_first() -> Any:
    """Of sequences whose first dimension is time, as `nn.LSTM` has them by default."""
    model, loss, _ = mlp()
    return model, loss, lambda number: ((torch.zeros(12, BATCH, 6),), (torch.arange(BATCH) % 3,))


def with_max_norm() -> Any:
    """Its forward shortens the rows of an embedding that it looks up."""

    def minibatch(number: int) -> Any:
        tokens = torch.randint(0, 11, (BATCH,), generator=torch.Generator().manual_seed(number))
        return (tokens,), ((tokens + 1) % 3,)

    model = nn.Sequential(nn.Embedding(11, 6, max_norm=0.1), nn.Tanh(), nn.Linear(6, 3))
    return model, functional.cross_entropy, minibatch


def diverged() -> Any:
    model, loss, minibatch = mlp()
    return model, lambda output, target: loss(output, target) * float("nan"), minibatch


def counting() -> Any:
    """Its loss grows a little with each call."""
    model, loss, minibatch = mlp()
    calls: list[int] = []

    def growing(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        return (1 + 1e-3 * len(calls)) * loss(output, target)

    return model, growing, minibatch


def fails_later() -> Any:
    model, loss, minibatch = mlp()
    calls = []

    def failing(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("no such target")
        return loss(output, target)

    return model, failing, minibatch
