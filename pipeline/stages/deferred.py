"""Linear layers whose weights' gradients are put off (the zero-bubble order).

The gradient of the input goes back at once; what the gradients of weight and bias need is noted, and they are computed
when the schedule says so, by the operations that autograd uses: the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch.nn import functional

if TYPE_CHECKING:
    from pipeline.stages.traced import TracedModel

Places = tuple[int, int | None]


@dataclass
class PutOff:
    """Gradients of weights that one microbatch still has to compute: (places of weight and bias among the stage's
    parameters, the layer's input, the gradient of its output)."""

    items: list[tuple[Places, Tensor, Tensor]] = field(default_factory=list)

    def gradients(self) -> dict[int, Tensor]:
        """Gradients by place; afterwards nothing is put off."""
        found = {}
        for (weight, bias), x, gradient in self.items:
            rows = gradient.reshape(-1, gradient.shape[-1])
            found[weight] = rows.t().mm(x.reshape(-1, x.shape[-1]))
            if bias is not None:
                found[bias] = rows.sum(0)
        self.items.clear()
        return found


class _Linear(torch.autograd.Function):
    """x W^T + b whose backward computes the gradient of x alone."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, put_off: PutOff, places: Places
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.put_off, ctx.places = put_off, places
        made = functional.linear(x, weight, bias)
        # Of more than two dimensions it is a view of what the product made, and torch lets nothing overwrite a view
        # that a function like this one returns (such as the ReLU behind it).
        return torch.ops.aten._unsafe_view.default(made, made.shape) if made._is_view() else made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.put_off.items.append((ctx.places, x.detach(), gradient))
        rows = gradient.reshape(-1, gradient.shape[-1])
        return rows.mm(weight).view(x.shape), None, None, None, None


def linear_with_deferred_weights(
    x: Tensor, weight: Tensor, bias: Tensor | None, put_off: PutOff | None, places: Places
) -> Tensor:
    """A linear layer; with `put_off` the gradients of its weight and bias are noted there instead of computed."""
    if put_off is None:
        return torch.ops.aten.linear.default(x, weight, bias)
    found: Tensor = _Linear.apply(x, weight, bias, put_off, places)
    return found


def is_deferrable(node: fx.Node, traced: TracedModel) -> fx.Node | None:
    """The weight of a linear layer whose gradients may be put off: used once, on a contiguous input that needs a
    gradient itself. Not on a single number: autograd takes that for a column, and computes its gradient otherwise."""
    if node.target is not torch.ops.aten.linear.default:
        return None
    x, weight, *bias = node.args
    weights = [p for p in (weight, *bias) if p is not None]
    once = all(isinstance(p, fx.Node) and p in traced.parameters and len(p.users) == 1 for p in weights)
    fact = traced.facts.get(x) if isinstance(x, fx.Node) else None
    if (
        not once
        or fact is None
        or not fact.needs_gradient
        or len(fact.shape) < 2
        or math.prod(fact.shape) == 1
    ):
        return None
    if not all(traced.facts[p].needs_gradient for p in weights):
        return None
    contiguous = torch.empty(fact.shape, device="meta").stride() == fact.stride
    assert isinstance(weight, fx.Node)
    return weight if contiguous else None
