"""The versions of a stage's weights, and the optimizer that makes the next one.

A version is a list of leaves for autograd. While a minibatch in flight still needs a version, the next one is made in
memory of its own and the old one stays as it is, kept by reference. A version that nothing needs is overwritten in
place. The optimizer works on tensors that share the newest version's memory and appear in no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class StageWeights:
    """Weights of one stage, by version.

    values: the model's parameters by name; their memory is version 0. last_use: for each version the place in the
    worker's list of the last action that needs it.
    """

    def __init__(
        self,
        values: Mapping[str, Tensor],
        names: Sequence[str],
        make_optimizer: MakeOptimizer,
        last_use: Mapping[int, int],
    ) -> None:
        self.names = tuple(names)
        self._trains = [values[name].requires_grad for name in names]
        self._memory = [values[name].detach() for name in names]
        self._masters = [nn.Parameter(tensor.detach(), requires_grad=True) for tensor in self._memory]
        for master, tensor in zip(self._masters, self._memory, strict=True):
            master.data = tensor
        trained = [m for m, trains in zip(self._masters, self._trains, strict=True) if trains]
        self.optimizer = make_optimizer(trained) if trained else None
        self._last_use = last_use
        self.newest = 0
        self._versions: dict[int, list[Tensor]] = {0: self._leaves()}
        self._free: list[list[Tensor]] = []
        self.peak = 1

    def version(self, number: int) -> list[Tensor]:
        """The leaves of a version that is still kept."""
        return self._versions[number]

    def step(self, number: int, gradients: Sequence[Tensor | None], place: int) -> None:
        """Make version `number` from the newest one; `place` is that of the action under way in the worker's list."""
        self.ended(place)
        if self._last_use.get(self.newest, -1) > place:
            fresh = self._free.pop() if self._free else [torch.empty_like(old) for old in self._memory]
            for new, old, trains in zip(fresh, self._memory, self._trains, strict=True):
                if trains:
                    new.copy_(old)
            self._memory = [
                new if trains else old
                for new, old, trains in zip(fresh, self._memory, self._trains, strict=True)
            ]
            for master, memory in zip(self._masters, self._memory, strict=True):
                master.data = memory
            leaves = self._leaves()
        else:
            leaves = self._versions.pop(self.newest)
        for master, gradient, trains in zip(self._masters, gradients, self._trains, strict=True):
            master.grad = gradient if trains else None
        if self.optimizer is not None:
            self.optimizer.step()
        for master in self._masters:
            master.grad = None
        self._versions[number] = leaves
        self.newest = number
        self.peak = max(self.peak, len(self._versions))

    def ended(self, place: int) -> None:
        """The action at `place` has ended: versions that no later one needs are let go."""
        for number in [v for v in self._versions if v != self.newest and self._last_use.get(v, -1) <= place]:
            self._free.append([leaf.data for leaf in self._versions.pop(number)])

    def values(self) -> dict[str, Tensor]:
        """The newest version by name."""
        return dict(zip(self.names, self._memory, strict=True))

    def _leaves(self) -> list[Tensor]:
        return [
            tensor.data.requires_grad_(trains)
            for tensor, trains in zip(self._memory, self._trains, strict=True)
        ]
