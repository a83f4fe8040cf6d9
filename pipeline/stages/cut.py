"""Stages of a traced model: which layers each has, what comes in from the stage before and what goes on to the next.

A value that a later stage reads passes through every stage between, and its gradient comes back the same way: so the
sums of gradients have the order that autograd gives them in the whole model, bit for bit. Weights that two stages share
belong to the stage that uses them first; the others get them as a value. The model's own inputs do not travel: each
stage reads its own from the minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pipeline.stages.deferred import is_deferrable, linear_with_deferred_weights
from pipeline.stages.layering import Fact, StageError
from pipeline.stages.traced import TracedModel

_MASK = (1 << 63) - 1
_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class StageCode:
    """A stage that can run.

    layers: the first and the one behind the last. parameters, buffers: names in the model of what it owns. inputs:
    places of the model's own inputs that it reads. incoming, outgoing: what crosses its two cuts. deferred: the
    parameters whose gradients the zero-bubble order puts off. is_last: `outgoing` are the tensors of the
    model's output, in the order of `TracedModel.outputs`.

    call: (key, put_off, *parameters, *buffers, *inputs, *incoming) -> outgoing, where `key` seeds random numbers and
    `put_off` takes the gradients of weights that are put off (None: none are).
    """

    layers: tuple[int, int]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    inputs: tuple[int, ...]
    incoming: tuple[Fact, ...]
    outgoing: tuple[Fact, ...]
    deferred: tuple[int, ...]
    is_last: bool
    call: Callable[..., tuple[Any, ...]]


def cut(traced: TracedModel, ends: Sequence[int]) -> tuple[StageCode, ...]:
    """The stages whose last layers are right before `ends` (ascending, the last is the number of layers).

    Raises StageError.
    """
    count = len(traced.layers)
    if len(ends) > count:
        raise StageError(
            f"{len(ends)} stages are more than the {count} layers of the model: ask for {count} or fewer"
        )
    if list(ends) != sorted(set(ends)) or not ends or ends[0] < 1 or ends[-1] != count:
        raise StageError(
            f"stages must end behind layers 1 to {count}, the last behind {count}, found {list(ends)}"
        )
    stage_of = {}
    for stage, (first, last) in enumerate(_ranges(ends)):
        stage_of.update({node: stage for layer in traced.layers[first:last] for node in layer.nodes})
    owner, last_use = _lives(traced, stage_of, len(ends))
    crossing = [
        [node for node in owner if owner[node] <= stage < last_use[node]] for stage in range(len(ends) - 1)
    ]
    outputs = [node for node in traced.outputs if isinstance(node, fx.Node)]
    cuts = [[], *crossing, outputs]
    return tuple(
        _stage(traced, layers, cuts[stage], cuts[stage + 1], owner, stage, stage == len(ends) - 1)
        for stage, layers in enumerate(_ranges(ends))
    )


def balanced_ends(seconds: Sequence[float], replicas: Sequence[int]) -> tuple[int, ...]:
    """The ends of stages with so many replicas whose slowest, in seconds per replica, is fastest. Raises StageError."""
    layers, stages = len(seconds), len(replicas)
    if stages > layers:
        raise StageError(
            f"{stages} stages are more than the {layers} layers of the model: ask for {layers} or fewer"
        )
    before = [0.0]
    for s in seconds:
        before.append(before[-1] + s)
    # best[j]: (slowest stage, ends) of the first stages over layers 0 .. j - 1.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage, count in enumerate(replicas):
        now = {}
        for end in range(stage + 1, layers - (stages - stage - 1) + 1):
            now[end] = min(
                (max(worst, (before[end] - before[start]) / count), (*ends, end))
                for start, (worst, ends) in best.items()
                if start < end
            )
        best = now
    return best[layers][1]


def seed_of(key: int, number: int) -> int:
    """The seed of one random operation."""
    return (key + number * _STEP) & _MASK


def draw_from(key: int, number: int) -> None:
    """Random numbers that depend on the key and the operation, not on where the model is cut."""
    torch.default_generator.manual_seed(seed_of(key, number))


def is_random(node: fx.Node) -> bool:
    """Whether an operation may draw random numbers."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or isinstance(
        node.target, torch._ops.HigherOrderOperator
    )


def _ranges(ends: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip([0, *ends[:-1]], ends, strict=True))


def _lives(
    traced: TracedModel, stage_of: dict[fx.Node, int], stages: int
) -> tuple[dict[fx.Node, int], dict[fx.Node, int]]:
    """The stages that make and that last need each tensor that may travel, in the order of the graph."""
    outputs = {node for node in traced.outputs if isinstance(node, fx.Node)}
    owner: dict[fx.Node, int] = {}
    last_use: dict[fx.Node, int] = {}
    # Where the output shows a buffer or input that the forward changes, it travels from the stage that changes it:
    # another stage's own copy does not change.
    changed = [node for node, name in traced.buffers.items() if name in traced.changed]
    inputs = [traced.inputs[place] for place in sorted(traced.overwritten)]
    changed += [node for node in inputs if node is not None]
    for node in [*traced.parameters, *(n for n in changed if n in outputs), *stage_of]:
        users = [stage_of[user] for user in node.users if user in stage_of]
        users += [stages - 1] if node in outputs else []
        made = stage_of.get(node, min(users, default=0))
        if users and (node in traced.facts):
            owner[node], last_use[node] = made, max(users)
    return owner, last_use


def _stage(
    traced: TracedModel,
    layers: tuple[int, int],
    incoming: Sequence[fx.Node],
    outgoing: Sequence[fx.Node],
    owner: dict[fx.Node, int],
    stage: int,
    is_last: bool,
) -> StageCode:
    nodes = [node for layer in traced.layers[slice(*layers)] for node in layer.nodes]
    read = dict.fromkeys(value for node in nodes for value in node.all_input_nodes)
    # In the graph's order, so that names come out the same wherever the model is cut.
    parameters = [p for p in traced.parameters if owner.get(p) == stage and (p in read or p in outgoing)]
    buffers = [b for b in traced.buffers if b in read or (b in outgoing and b not in incoming)]
    inputs = [
        place
        for place, node in enumerate(traced.inputs)
        if node is not None and (node in read or (node in outgoing and node not in incoming))
    ]
    graph, copies = fx.Graph(), {}
    key, put_off = graph.placeholder("key"), graph.placeholder("put_off")
    own = [traced.inputs[place] for place in inputs]
    for number, node in enumerate([*parameters, *buffers, *own, *incoming]):
        assert node is not None
        copies[node] = graph.placeholder(f"given_{number}")
    deferred = {}
    for node in nodes:
        for value in node.all_input_nodes:
            if value.op == "get_attr" and value not in copies:
                copies[value] = graph.node_copy(value)
        if is_random(node):
            graph.call_function(draw_from, (key, traced.numbers[node]))
        if (weight := is_deferrable(node, traced)) is not None and weight in parameters:
            deferred[node] = [parameters.index(p) if isinstance(p, fx.Node) else None for p in _pair(node)]
            arguments = tuple(copies[a] if isinstance(a, fx.Node) else a for a in _three(node))
            copies[node] = graph.call_function(
                linear_with_deferred_weights, (*arguments, put_off, tuple(deferred[node]))
            )
        else:
            copies[node] = graph.node_copy(node, lambda value: copies[value])
    graph.output(tuple(copies[node] for node in outgoing))
    module = fx.GraphModule(traced.graph_module, graph)
    return StageCode(
        layers,
        tuple(traced.parameters[p] for p in parameters),
        tuple(traced.buffers[b] for b in buffers),
        tuple(inputs),
        tuple(traced.facts[node] for node in incoming),
        tuple(traced.facts[node] for node in outgoing),
        tuple(sorted(i for pair in deferred.values() for i in pair if i is not None)),
        is_last,
        module.forward,
    )


def _three(node: fx.Node) -> tuple[Any, Any, Any]:
    """Input, weight and bias of a linear layer."""
    return (*node.args, None)[:3] if len(node.args) < 3 else node.args


def _pair(node: fx.Node) -> tuple[Any, Any]:
    return _three(node)[1:]
