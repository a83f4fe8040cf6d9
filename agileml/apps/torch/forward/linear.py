"""Linear layers whose weight gradient is computed right where it is to lie.

Backward of a linear layer makes a new array for the weight's gradient, which is then copied into the flat one: for 25 M
parameters 16 of 125 ms. Here the matrix product writes to its place itself, and what autograd accumulates is a view of
that place. All else is autograd's: a weight that is used twice, or elsewhere too, gets the sum as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

_NO_BACKWARD = -1


class GradientSlot:
    """Where the gradient of a weight goes in the present backward. The first product gets it, others make arrays."""

    def __init__(self) -> None:
        self.view: Tensor | None = None
        self._taken_in = _NO_BACKWARD

    @property
    def is_asked_for(self) -> bool:
        """It was free when the backward began that goes on, or it is now. What a checkpoint computes again in a
        backward must save the same tensors as its forward did, before another layer took the place."""
        if self.view is not None:
            return True
        return self._taken_in != _NO_BACKWARD and self._taken_in == torch._C._current_graph_task_id()

    def take(self) -> Tensor | None:
        """The place, once; None when it is taken or was not asked for."""
        if self.view is not None:
            self._taken_in = torch._C._current_graph_task_id()
        view, self.view = self.view, None
        return view


class _Linear(torch.autograd.Function):
    """x W^T + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, place: GradientSlot) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.place = place
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0]
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        to_weight = None
        if of_weight:
            # With a graph of the gradient (create_graph) nothing may be written to.
            out = None if torch.is_grad_enabled() else ctx.place.take()
            items = x.reshape(-1, x.shape[-1])
            to_weight = rows.t().mm(items) if out is None else torch.mm(rows.t(), items, out=out)
        return (
            gradient.matmul(weight) if of_x else None,
            to_weight,
            rows.sum(0) if of_bias else None,
            None,
        )


def _forward(
    layer: nn.Linear, place: GradientSlot, original: Callable[[Tensor], Tensor], x: Tensor
) -> Tensor:
    plain = not torch.is_grad_enabled() or not place.is_asked_for or torch.is_autocast_enabled(x.device.type)
    if plain or layer.weight.device != x.device or _is_transformed():
        return original(x)
    return _Linear.apply(x, layer.weight, layer.bias, place)


def _is_transformed() -> bool:
    """A transform of torch.func (grad, vmap, jvp, ...) or forward-mode differentiation goes on: these do not know
    `_Linear`."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def write_in_place(module: nn.Module, parameters: Mapping[int, str]) -> dict[str, GradientSlot]:
    """Let the plain linear layers of a module write their weights' gradients; the places by parameter name.

    `parameters` has the names by the parameter's id. Layers with a forward or weight of their own making stay so.
    """
    places: dict[str, GradientSlot] = {}
    if any(is_compiled(part) for part in module.modules()):
        return places  # a compiled graph ends at every layer with a forward of ours, and is compiled for each anew
    for layer in module.modules():
        if type(layer) is not nn.Linear or "forward" in vars(layer) or "weight" not in layer._parameters:
            continue
        name = parameters.get(id(layer.weight))
        if name is not None:
            place = places.setdefault(name, GradientSlot())
            layer.forward = partial(_forward, layer, place, layer.forward)
    return places


def is_compiled(module: nn.Module) -> bool:
    """True for what `torch.compile(module)` returns, and for a module that was compiled in place."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
