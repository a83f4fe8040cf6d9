"""The profile of an executable model: each of its layers run as a stage of its own, forward and backward timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pipeline.profile.layers import Layer, Profile
from pipeline.stages.cut import StageCode, cut
from pipeline.stages.faithful import check_gradients
from pipeline.stages.passes import Loss, Pass, StageCompute, leaves_of
from pipeline.stages.traced import TracedModel


def measured_profile(
    traced: TracedModel,
    loss: Loss,
    inputs: Sequence[Any],
    targets: Sequence[Any],
    *,
    model: str,
    batch: int,
    repeats: int = 5,
) -> Profile:
    """Seconds (the median of `repeats` runs after one more) and bytes of each layer, for a microbatch of `batch` items.

    The last layer has the loss too. Buffers that a forward changes are as before afterwards. Raises StageError for a
    model or loss whose gradients stages do not have.
    """
    check_gradients(traced, loss, inputs, targets)
    codes = cut(traced, range(1, len(traced.layers) + 1))
    before = {name: traced.values[name].clone() for name in traced.changed}
    runs = [_run(traced, codes, loss, inputs, targets) for _ in range(repeats + 1)][1:]
    for name, value in before.items():
        traced.values[name].copy_(value)
    layers = []
    for place, (layer, (activations, weights)) in enumerate(
        zip(traced.layers, layer_bytes(traced), strict=True)
    ):
        layers.append(
            Layer(
                layer.name,
                statistics.median(run[place][0] for run in runs),
                statistics.median(run[place][1] for run in runs),
                activations,
                weights,
            )
        )
    flat = traced.flat_inputs(inputs)
    return Profile(
        model=model,
        layers=tuple(layers),
        edges=tuple(sorted(_edges(traced))),
        batch=batch,
        device="cpu",
        input_bytes=float(sum(v.nbytes for v in flat if isinstance(v, torch.Tensor))),
        tied=tuple(_tied(traced)),
    )


def layer_bytes(traced: TracedModel) -> list[tuple[float, float]]:
    """Of each layer the bytes of its tensors that others read, and of the weights that it is the first to read."""
    where = layer_of_node(traced)
    weights = [0.0] * len(traced.layers)
    for node, name in traced.parameters.items():
        users = [where[user] for user in node.users if user in where]
        users += [len(weights) - 1] if node in traced.outputs else []
        if users:
            weights[min(users)] += traced.values[name].nbytes
    return [
        (float(sum(traced.facts[n].size_bytes for n in _read_later(traced, place))), own)
        for place, own in enumerate(weights)
    ]


def layer_of_node(traced: TracedModel) -> dict[fx.Node, int]:
    """The layer of each node."""
    return {node: place for place, layer in enumerate(traced.layers) for node in layer.nodes}


def _read_later(traced: TracedModel, place: int) -> list[fx.Node]:
    """The tensors of a layer that other layers, or the loss, read."""
    where = layer_of_node(traced)
    return [
        node
        for node in traced.layers[place].nodes
        if node in traced.facts
        and (node in traced.outputs or any(where.get(user, place) != place for user in node.users))
    ]


def _edges(traced: TracedModel) -> set[tuple[int, int]]:
    where = layer_of_node(traced)
    found = {
        (a, where[user])
        for node, a in where.items()
        for user in node.users
        if user in where and where[user] != a
    }
    last = len(traced.layers) - 1
    return found | {(where[node], last) for node in traced.outputs if node in where and where[node] != last}


def _tied(traced: TracedModel) -> list[tuple[int, ...]]:
    where = layer_of_node(traced)
    groups = {tuple(sorted({where[user] for user in p.users if user in where})) for p in traced.parameters}
    return sorted(group for group in groups if len(group) > 1)


def _run(
    traced: TracedModel, codes: Sequence[StageCode], loss: Loss, inputs: Sequence[Any], targets: Sequence[Any]
) -> list[tuple[float, float]]:
    """(forward, backward) seconds of each layer in one step."""
    flat = traced.flat_inputs(inputs)
    values: list[torch.Tensor] = []
    passes: list[tuple[StageCompute, Pass, float]] = []
    for code in codes:
        compute = StageCompute(traced, code, loss=loss)
        weights = leaves_of(traced.values, code.parameters)
        begin = time.perf_counter()
        kept = compute.forward(weights, values, flat, targets, 0)
        passes.append((compute, kept, time.perf_counter() - begin))
        values = list(kept.outgoing)
    found = []
    gradients: list[torch.Tensor | None] = [torch.ones_like(value) for value in values]
    for compute, kept, forward_s in reversed(passes):
        begin = time.perf_counter()
        gradients, _ = compute.backward(kept, gradients)
        found.append((forward_s, time.perf_counter() - begin))
    return found[::-1]
