"""The forward and the backward of one microbatch at a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pipeline.stages.cut import StageCode, draw_from
from pipeline.stages.deferred import PutOff
from pipeline.stages.layering import StageError
from pipeline.stages.traced import TracedModel

Loss = Callable[..., Tensor]
Gradients = list[Tensor | None]


@dataclass
class Pass:
    """A microbatch between its forward and its backward at a stage.

    outgoing: what goes on to the next stage; the last stage has the loss alone. again: runs the forward a second
    time, at a stage that recomputes.
    """

    leaves: list[Tensor]
    weights: Sequence[Tensor]
    outgoing: tuple[Tensor, ...]
    put_off: PutOff | None
    again: Callable[[], tuple[Tensor, ...]] | None = None


class StageCompute:
    """Computes at one stage of a model.

    Buffers are the model's own; those that a forward changes are changed in place, behind it: it computes on copies,
    because other microbatches run before its backward, which still needs what it read. So does a forward that runs
    again. loss: (output, *targets) -> the mean over the items, needed by the last stage. recompute: keep only the
    stage's input, and run the forward again in the backward.
    """

    def __init__(
        self,
        traced: TracedModel,
        code: StageCode,
        *,
        loss: Loss | None = None,
        recompute: bool = False,
    ) -> None:
        assert loss is not None or not code.is_last
        self.code = code
        self.buffers = [traced.values[name] for name in code.buffers]
        self._traced, self._loss, self._recompute = traced, loss, recompute
        self._changed = {name for name in code.buffers if name in traced.changed}
        self._overwritten = [place in traced.overwritten for place in code.inputs]

    def forward(
        self,
        weights: Sequence[Tensor],
        incoming: Sequence[Tensor],
        inputs: Sequence[Any],
        targets: Sequence[Any],
        key: int,
        *,
        defer: bool = False,
    ) -> Pass:
        """Run the forward.

        weights: leaves, as `code.parameters` names them. inputs: the flat inputs of the whole model. targets: for the
        loss. key: of the random numbers. defer: `backward` leaves gradients of weights to `deferred`.
        """
        facts = self.code.incoming
        leaves = [
            value.detach().requires_grad_(fact.needs_gradient)
            for value, fact in zip(incoming, facts, strict=True)
        ]
        own = [inputs[place] for place in self.code.inputs]
        put_off = PutOff() if defer and self.code.deferred else None
        buffers, before = self._copied(), self._copied() if self._recompute else []
        outgoing = self._run(
            weights, buffers, own, leaves, targets, key, None if self._recompute else put_off
        )
        with torch.no_grad():
            for name, mine, now in zip(self.code.buffers, self.buffers, buffers, strict=True):
                if name in self._changed:
                    mine.copy_(now)
        if not self._recompute:
            return Pass(leaves, weights, outgoing, put_off)
        # Without gradients torch takes other kernels for some layers (LSTM), which round differently. So this pass
        # has recorded its graph, too, and drops it.
        return Pass(
            leaves,
            weights,
            tuple(value.detach() for value in outgoing),
            put_off,
            lambda: self._run(weights, before, own, leaves, targets, key, put_off),
        )

    def _copied(self) -> list[Tensor]:
        """The buffers, those that a forward changes as copies."""
        by_name = zip(self.code.buffers, self.buffers, strict=True)
        fresh = {name: b.detach().clone() if name in self._changed else b for name, b in by_name}
        return [fresh[name] for name in self.code.buffers]

    def backward(self, kept: Pass, gradients: Sequence[Tensor | None]) -> tuple[Gradients, Gradients]:
        """(gradients of the inputs, gradients of the weights), None where there is none.

        gradients: of `kept.outgoing`. Gradients of weights that were put off are None.
        """
        outgoing = kept.outgoing if kept.again is None else kept.again()
        pairs = [
            (value, gradient)
            for value, gradient in zip(outgoing, gradients, strict=True)
            if gradient is not None and value.requires_grad
        ]
        later = set(self.code.deferred) if kept.put_off is not None else set()
        wanted = [leaf for leaf in kept.leaves if leaf.requires_grad]
        wanted += [w for place, w in enumerate(kept.weights) if w.requires_grad and place not in later]
        found: list[Tensor | None] = [None] * len(wanted)
        if pairs and wanted:
            values, roots = zip(*pairs, strict=True)
            found = list(torch.autograd.grad(values, wanted, roots, allow_unused=True))
        kept.outgoing, kept.again = (), None
        each = iter(found)
        into = [next(each) if leaf.requires_grad else None for leaf in kept.leaves]
        own = [
            next(each) if w.requires_grad and place not in later else None
            for place, w in enumerate(kept.weights)
        ]
        return into, own

    def deferred(self, kept: Pass) -> dict[int, Tensor]:
        """The gradients of weights that `backward` put off, by place."""
        return kept.put_off.gradients() if kept.put_off is not None else {}

    def _run(
        self,
        weights: Sequence[Tensor],
        buffers: Sequence[Tensor],
        own: Sequence[Any],
        leaves: Sequence[Tensor],
        targets: Sequence[Any],
        key: int,
        put_off: PutOff | None,
    ) -> tuple[Tensor, ...]:
        mine = [v.clone() if o else v for v, o in zip(own, self._overwritten, strict=True)]
        outgoing = self.code.call(key, put_off, *weights, *buffers, *mine, *leaves)
        if not self.code.is_last:
            return outgoing
        assert self._loss is not None
        # A loss may be random, too, behind all operations of the model.
        draw_from(key, len(self._traced.numbers))
        return (loss_of(self._loss, whole_output(self._traced, outgoing), targets),)


def loss_of(loss: Loss, output: Any, targets: Sequence[Any]) -> Tensor:
    """The loss of an output. Raises StageError where it is not one number."""
    found = loss(output, *targets)
    if not isinstance(found, Tensor) or found.numel() != 1:
        what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise StageError(f"the loss returned {what}, expected one number, the mean over the items")
    return found


def whole_output(traced: TracedModel, tensors: Sequence[Tensor]) -> Any:
    """The model's output, nested as its forward returns it, from the tensors in it."""
    each = iter(tensors)
    flat = [next(each) if isinstance(item, torch.fx.Node) else item for item in traced.outputs]
    return pytree.tree_unflatten(flat, traced.out_spec)


def leaves_of(values: Mapping[str, Tensor], names: Sequence[str]) -> list[Tensor]:
    """New leaves for autograd that show the memory of the model's parameters."""
    return [values[name].data.requires_grad_(values[name].requires_grad) for name in names]
