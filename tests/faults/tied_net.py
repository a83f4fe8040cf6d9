"""A network in which two layers share weights over a cut, with dropout between them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 12


class Block(nn.Module):
    """A shortcut over two linear layers, of which the second is the same in every block."""

    def __init__(self, shared: nn.Linear) -> None:
        super().__init__()
        self.own, self.norm, self.shared = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), shared
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        """[items, WIDTH] -> the same."""
        return x + self.dropout(self.shared(torch.tanh(self.norm(self.own(x)))))


def make() -> nn.Module:
    """Four groups of parameters: the first layer, two blocks, the last layer."""
    shared = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(nn.Linear(64, WIDTH), Block(shared), Block(shared), nn.Linear(WIDTH, 10))
