"""From a module and a batch to the loss: the meaning of a batch of each form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from agileml.application import InputError

Loss = Callable[[Any, Any], Tensor]  # (output, target) -> the mean over the items


@dataclass(frozen=True)
class Judged:
    """The mean loss of a batch; the output and the target where it has the form (input, ..., target)."""

    loss: Tensor
    output: Any = None
    target: Any = None


class Objective(Protocol):
    """Computes the loss of a batch."""

    def __call__(self, module: nn.Module, batch: Any) -> Judged: ...


@dataclass(frozen=True)
class OutputLoss:
    """A batch (input, ..., target): `loss(module(input, ...), target)`. A mapping: `module(**batch)`, which returns its
    own loss as `.loss` or under "loss", as the models of Hugging Face do."""

    loss: Loss

    def __call__(self, module: nn.Module, batch: Any) -> Judged:
        if isinstance(batch, Mapping):
            output = module(**batch)
            found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
            if found is None:
                raise InputError(
                    "model.module: a batch is a mapping and forward returned no `loss`, expected one, or a step: a "
                    "function of (module, batch) that returns the loss"
                )
            return Judged(found, output, batch)
        if isinstance(batch, Sequence) and len(batch) >= 2:
            *inputs, target = batch
            output = module(*inputs)
            return Judged(self.loss(output, target), output, target)
        raise InputError(
            f"data.dataset: found a batch of type {type(batch).__name__}, expected (input, ..., target), a mapping, or "
            "a step: a function of (module, batch) that returns the loss"
        )


@dataclass(frozen=True)
class UserStep:
    """The user's own function of (module, batch) that returns the mean loss."""

    function: Callable[[nn.Module, Any], Tensor]

    def __call__(self, module: nn.Module, batch: Any) -> Judged:
        return Judged(self.function(module, batch))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode; afterwards each part of the module is in its own mode again."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, was_training in modes:  # parents come first, and take their parts along
            if part.training != was_training:
                part.train(was_training)


def autocasting(device: torch.device, dtype: str | None) -> AbstractContextManager[Any]:
    """The context of a forward in mixed precision; None: of the parameters' own."""
    return nullcontext() if dtype is None else torch.autocast(device.type, getattr(torch, dtype))


def right_places(output: Any, target: Any) -> Tensor | None:
    """Where scores of classes are greatest at the target's class; None for outputs and targets of another kind.

    output: (items, classes, ...), target: whole numbers of shape (items, ...); those that are no class are left out, as
    the losses of torch leave out -100 or another `ignore_index`. One score for each item is a logit or a number, and no
    class.
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor) or target.is_floating_point():
        return None
    if (
        output.ndim != target.ndim + 1
        or output.shape[1] < 2
        or output.shape[:1] + output.shape[2:] != target.shape
    ):
        return None
    return (output.argmax(1) == target)[(target >= 0) & (target < output.shape[1])]
