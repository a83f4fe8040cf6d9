"""Small modules that come along, for examples, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def cnn(
    channels: int = 1, size: int = 28, classes: int = 10, dropout: float = 0.0, batch_norm: bool = False
) -> nn.Module:
    """Two convolutions with pooling and two linear layers, for images of (channels, size, size)."""
    layers: list[nn.Module] = []
    for inside, outside in ((channels, 16), (16, 32)):
        layers.append(nn.Conv2d(inside, outside, 3, padding=1))
        if batch_norm:
            layers.append(nn.BatchNorm2d(outside))
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    layers += [
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(32 * (size // 4) ** 2, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    ]
    return nn.Sequential(*layers)


def mlp(sizes: Sequence[int] = (784, 256, 10), dropout: float = 0.0) -> nn.Module:
    """Linear layers from sizes[0] features to sizes[-1] outputs with ReLU in between."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inside, outside in pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers[:-2])
