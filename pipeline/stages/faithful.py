"""Whether the recorded operations have the gradients that the module itself has.

`torch.export` records forwards. What a module does in the backward alone is lost without a word: hooks on gradients and
the backward of a `torch.autograd.Function`, such as a straight-through estimator. Random numbers of Python and NumPy
become constants. So one step of the module is compared with one of the graph.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from pipeline.stages.cut import is_random
from pipeline.stages.layering import StageError
from pipeline.stages.passes import Loss, loss_of, whole_output
from pipeline.stages.traced import TracedModel

# A module may take another way while it is recorded (transformers makes its masks otherwise), which rounds otherwise;
# what is lost is as large as the gradient.
_ROUNDING = 1e-2
# Of the largest gradient: beside it a gradient may be rounding alone, as that of the bias of a key.
_NOTHING = 1e-4

Step = tuple[Tensor, list[Tensor | None]]  # loss and gradients


def check_gradients(traced: TracedModel, loss: Loss, inputs: Sequence[Any], targets: Sequence[Any]) -> None:
    """Raise StageError where stages do not have the module's gradients, or the loss reads parameters or has its own.

    Buffers and random numbers are as before afterwards.
    """
    names = [n for n in dict.fromkeys(traced.parameters.values()) if traced.values[n].requires_grad]
    held = {
        id(b): b for b in (*traced.module.buffers(), *(traced.values[n] for n in traced.buffers.values()))
    }
    before = [(buffer, buffer.detach().clone()) for buffer in held.values()]
    state = torch.get_rng_state()
    try:
        graph = _step(lambda: _of_graph(traced, names, loss, inputs, targets))
        _check_dense(names, graph[1])
        custom: list[str] = []
        own = _step(lambda: _of_module(traced, names, loss, inputs, targets, custom))
    finally:
        torch.set_rng_state(state)
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
    _compare(traced, names, graph, own, custom)


def _check_dense(names: Sequence[str], gradients: Sequence[Tensor | None]) -> None:
    """Raise StageError for a gradient that cannot be added up or sent as others are."""
    for name, gradient in zip(names, gradients, strict=True):
        if gradient is not None and gradient.layout is not torch.strided:
            raise StageError(
                f"the parameter {name!r} has a sparse gradient, as of an embedding with sparse=True, expected a dense "
                "one: stages send and add up whole ones"
            )


def _step(run: Callable[[], tuple[Tensor, list[Tensor]]]) -> Step:
    """`run` gives a loss, and the weights whose gradients are wanted."""
    torch.manual_seed(0)
    with torch.enable_grad():
        loss, weights = run()
    if not weights or not loss.requires_grad:
        return loss.detach(), [None for _ in weights]
    return loss.detach(), list(torch.autograd.grad(loss, weights, torch.ones_like(loss), allow_unused=True))


def _of_graph(
    traced: TracedModel, names: Sequence[str], loss: Loss, inputs: Sequence[Any], targets: Sequence[Any]
) -> tuple[Tensor, list[Tensor]]:
    leaves = {name: traced.values[name].detach() for name in traced.parameters.values()}
    weights = [leaves[name].requires_grad_() for name in names]
    arguments = [
        *(leaves[name] for name in traced.parameters.values()),
        *(traced.values[name].detach().clone() for name in traced.buffers.values()),
        *pytree.tree_leaves(_copied(inputs)),
    ]
    flat = fx.Interpreter(traced.graph_module).run(*arguments)
    made = [value for value, item in zip(flat, traced.outputs, strict=True) if isinstance(item, fx.Node)]
    found = loss_of(loss, whole_output(traced, made), targets)
    own = {id(value): name for name, value in traced.values.items()}
    for node in _nodes(found):
        variable = getattr(node, "variable", None)
        if (name := own.get(id(variable))) is not None:
            raise StageError(
                f"the loss reads the parameter {name!r} by itself, expected only the model's output and the targets, "
                "as it runs on the last stage alone: let the forward return what the loss needs"
            )
        if isinstance(variable, nn.Parameter):
            raise StageError(
                f"the loss has a parameter of its own, of shape {list(variable.shape)}, expected only those of the "
                "model, as nothing trains others: make it a part of the model, or freeze it (requires_grad_(False))"
            )
    return found, weights


def _of_module(
    traced: TracedModel,
    names: Sequence[str],
    loss: Loss,
    inputs: Sequence[Any],
    targets: Sequence[Any],
    custom: list[str],
) -> tuple[Tensor, list[Tensor]]:
    """custom: takes the names of autograd functions of the user's own."""
    drawn = _drawn()
    output = traced.module(*_copied(inputs))
    if drawn != _drawn():
        raise StageError(
            "the forward draws random numbers of Python or NumPy, expected those of torch: torch.export makes "
            "constants of others"
        )
    found = loss_of(loss, output, targets)
    kinds = (type(n) for n in _nodes(found) if isinstance(n, torch.autograd.function.BackwardCFunction))
    custom += dict.fromkeys(kind.__name__.removesuffix("Backward") for kind in kinds)
    return found, [traced.values[name] for name in names]


def _drawn() -> tuple[object, bytes, int]:
    """The states of Python's and NumPy's generators, which change with each number that is drawn."""
    _, keys, place, *_ = np.random.get_state()
    return random.getstate(), np.asarray(keys).tobytes(), int(place)


def _copied(inputs: Sequence[Any]) -> Any:
    return pytree.tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, tuple(inputs))


def _nodes(loss: Tensor) -> Iterator[Any]:
    """The autograd nodes behind a loss."""
    todo: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        todo += [after for after, _ in node.next_functions]


def _compare(
    traced: TracedModel, names: Sequence[str], graph: Step, own: Step, custom: Sequence[str]
) -> None:
    losses = float(graph[0]), float(own[0])
    if not all(map(math.isfinite, losses)):
        return
    if abs(losses[0] - losses[1]) > _ROUNDING * max(map(abs, losses)):
        if any(is_random(node) for layer in traced.layers for node in layer.nodes):
            return  # perhaps drawn in another order
        raise StageError(
            f"the recorded forward has the loss {losses[0]:.6g} and the module itself {losses[1]:.6g}, expected the "
            "same: torch.export makes constants of random numbers of Python and NumPy and of all that is no tensor"
        )
    norms = [0.0 if g is None else float(torch.linalg.vector_norm(g)) for g in own[1]]
    floor = _NOTHING * max((norm for norm in norms if math.isfinite(norm)), default=0.0)
    for name, here, there, norm in zip(names, graph[1], own[1], norms, strict=True):
        if _distance(here, there) > max(_ROUNDING * norm, floor):
            found = f" (found {', '.join(custom)})" if custom else ""
            raise StageError(
                f"the recorded operations give the parameter {name!r} another gradient than the module itself, "
                "expected the same: torch.export records neither hooks on gradients nor the backward of a "
                f"torch.autograd.Function of your own{found}"
            )


def _distance(one: Tensor | None, other: Tensor | None) -> float:
    """0 where both are none, or numbers are not finite."""
    if one is None or other is None:
        left = one if one is not None else other
        far = 0.0 if left is None else float(torch.linalg.vector_norm(left))
    else:
        far = float(torch.linalg.vector_norm(one - other))
    return far if math.isfinite(far) else 0.0
