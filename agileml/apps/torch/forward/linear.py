"""Linear layers whose weight gradient is computed right where it is to lie.

Backward of a linear layer makes a new array for the weight's gradient, which is then copied into the flat one: for 25 M
parameters 16 of 125 ms. Here the matrix product writes to its place itself, and what autograd accumulates is a view of
that place. All else is autograd's: a weight that is used twice, or elsewhere too, gets the sum as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional


class GradientSlot:
    """Where the gradient of a weight goes in a backward. The first product gets it, others make arrays.

    view: makes it when it is taken, so that nobody else refers to it, and autograd keeps it without a copy.
    """

    def __init__(self) -> None:
        self.view: Callable[[], Tensor] | None = None

    def take(self) -> Tensor | None:
        """The place, once; None when it is taken or was not handed out."""
        view, self.view = self.view, None
        return None if view is None else view()


@contextmanager
def handed_out(
    places: Mapping[str, GradientSlot], views: Mapping[str, Callable[[], Tensor]]
) -> Iterator[None]:
    """The context of a backward that fills these views, by the names of the places."""
    for name, view in views.items():
        places[name].view = view
    try:
        yield
    finally:
        for place in places.values():
            place.view = None


def second_gradient(name: str) -> RuntimeError:
    """The error for a parameter whose gradient was final when another came."""
    return RuntimeError(
        f"parameter {name!r} got two gradients in one backward, expected one "
        "(torch.utils.checkpoint needs use_reentrant=False)"
    )


class _Linear(torch.autograd.Function):
    """x W^T + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, place: GradientSlot) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.place = place
        made = functional.linear(x, weight, bias)
        # Of more than two dimensions it is a view of what the product made, and torch lets nothing overwrite a view
        # that a function like this one returns (such as `h = layer(x); h += x`).
        return torch.ops.aten._unsafe_view.default(made, made.shape) if made._is_view() else made

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
    # Whether the place is free does not count: what a checkpoint computes again in a backward must save the tensors
    # that its forward saved, whatever other layers and other backwards have taken meanwhile.
    plain = not torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type)
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
