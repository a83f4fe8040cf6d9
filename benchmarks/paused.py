"""Networks whose layers pause instead of computing: on two cores, two hosts then take the time of hosts of their own.

A layer has the parameters of a real one and hands out a whole gradient; forward and backward last as long as they are
told, whatever else the machine does. A pause that ends late makes the next one shorter.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Pauses:
    """The pauses of one process, whose errors do not add up."""

    def __init__(self) -> None:
        self._owed_s = 0.0

    def pause(self, seconds: float) -> None:
        self._owed_s = max(self._owed_s, -0.02) + seconds
        if self._owed_s > 0:
            began_s = time.monotonic()
            time.sleep(self._owed_s)
            self._owed_s -= time.monotonic() - began_s


class _Pausing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: PausedLayer) -> Tensor:
        ctx.layer = layer
        first = weight[:1].sum()  # it reads its parameters
        layer.pauses.pause(layer.forward_s)
        return x + 0.0 * first

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        layer = ctx.layer
        layer.pauses.pause(layer.backward_s)
        return gradients[0], torch.full_like(layer.weight, 1e-6), None


class PausedLayer(nn.Module):
    def __init__(self, elements: int, forward_s: float, backward_s: float, pauses: Pauses) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((elements,), 1e-3))
        self.forward_s, self.backward_s, self.pauses = forward_s, backward_s, pauses

    def forward(self, x: Tensor) -> Tensor:
        return _Pausing.apply(x, self.weight, self)


def paused(shares: Sequence[tuple[float, float]], elements: int, step_s: float) -> nn.Module:
    """Layers with (share of the elements, share of the computing) each; a third of a step is forward."""
    pauses = Pauses()
    return nn.Sequential(
        *(
            PausedLayer(round(size * elements), work * step_s / 3, work * step_s * 2 / 3, pauses)
            for size, work in shares
        )
    )


# A perceptron of equal layers; and as VGG is: the dense layers at the end have the parameters, convolutions the work.
EQUAL = tuple((1 / 8, 1 / 8) for _ in range(8))
VGG = (
    *((0.002 * (1 + index), 0.075) for index in range(12)),
    (0.60, 0.06),
    (0.20, 0.03),
    (1 - 0.8 - 0.002 * 78, 0.01),
)
