"""Profile any torch module as it is: seconds of each layer's forward and backward, bytes, and the graph.

A layer is one call of a module that calls no other module; a module that is called twice gives two layers.
Operations between such calls (additions of residuals, reshapes, losses) become layers of their own.
Time stamps are taken at the boundaries of calls in the forward and, in the backward, where autograd enters a
layer's nodes (each belongs to the layer that made it); so the layers' times add up to the whole pass.
Nothing is patched: hooks are added and removed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pipeline.profile.layers import Layer, Profile, ProfileError
from pipeline.profile.watch import Clock, Record, Watch, bytes_of, hooks, tensors_of

Loss = Callable[[Any], torch.Tensor]


@dataclass(frozen=True)
class Measurement:
    """A profile beside what it was checked against. step_s: median of the faster half of whole steps (forward
    and backward) without any hook, measured in turn with the profiled ones; spread: the interquartile range
    of all of them over their median; unattributed_bytes: weights that no layer used."""

    profile: Profile
    step_s: float
    spread: float
    unattributed_bytes: float

    @property
    def layers_over_step(self) -> float:
        """Sum of all layers' seconds over the seconds of the whole step."""
        return self.profile.single_seconds / self.step_s


def sum_of_outputs(output: Any) -> torch.Tensor:
    """The default loss: the sum of every floating-point output."""
    tensors = [t for t in tensors_of(output) if t.is_floating_point()]
    if not tensors:
        raise ProfileError("the model's output holds no floating-point tensor to make a loss of; give a loss")
    return torch.stack([t.float().sum() for t in tensors]).sum()


def profile_module(
    model: nn.Module,
    inputs: Sequence[Any],
    *,
    loss: Loss = sum_of_outputs,
    name: str | None = None,
    batch: int | None = None,
    warm_up: int = 3,
    repeats: int = 10,
    on_progress: Callable[[int, int], None] | None = None,
) -> Measurement:
    """Profile `model(*inputs)`, then `loss(output)` and its backward.

    Times are medians of the faster half of `repeats` after `warm_up`, by CUDA events where the model lives on
    a GPU. The model's gradients are cleared. Raises ProfileError where the model cannot be profiled.
    """
    if repeats < 1:
        raise ProfileError(f"at least one repeat is needed, found {repeats}")
    device = _device(model, inputs)
    graph, between = _whole_graph(model, inputs, loss)
    records: list[Record] = []
    steps: list[float] = []
    total = warm_up + repeats
    for index in range(total):
        # Plain and profiled steps in turn, so that both see the same machine.
        step_s = _plain_step(model, inputs, loss, device)
        record = _profiled_step(model, inputs, loss, device, between)
        if index >= warm_up:
            steps.append(step_s)
            records.append(record)
        if on_progress is not None:
            on_progress(index + 1, total)
    shapes = {tuple(key for key, _ in record.spans) for record in records}
    if len(shapes) != 1 or (graph is not None and len(graph.stamps) != len(records[0].spans)):
        raise ProfileError(
            "the model ran different layers from one step to the next; profile it with inputs that take one path"
        )
    quartiles = statistics.quantiles(steps, n=4) if len(steps) > 1 else [steps[0]] * 3
    spread = (quartiles[2] - quartiles[0]) / statistics.median(steps)
    # Other work on the machine only ever adds time: the faster half says more, of both kinds of step.
    faster = (repeats + 1) // 2
    step_s = statistics.median(sorted(steps)[:faster])
    records = sorted(records, key=Record.seconds)[:faster]
    result = _profile(model, records, graph, name or type(model).__name__, batch, inputs, device)
    counted = sum(layer.parameter_bytes for layer in result.layers)
    every = sum(p.numel() * p.element_size() for p in model.parameters())
    return Measurement(result, step_s, spread, every - counted)


def _device(model: nn.Module, inputs: Sequence[Any]) -> torch.device:
    for tensor in (*model.parameters(), *tensors_of(list(inputs))):
        return tensor.device
    raise ProfileError("the model has neither parameters nor tensors as inputs: there is nothing to profile")


def _plain_step(model: nn.Module, inputs: Sequence[Any], loss: Loss, device: torch.device) -> float:
    """Seconds of forward, loss and backward without any hook."""
    clock = Clock(device)
    model.zero_grad(set_to_none=True)
    clock.finish()
    start = clock.stamp()
    value = loss(model(*inputs))
    _check_loss(value)
    value.backward()
    end = clock.stamp()
    clock.finish()
    return clock.seconds(start, end)


def _check_loss(value: object) -> None:
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        found = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise ProfileError(f"the loss must be one number, found {found}")
    if value.grad_fn is None:
        raise ProfileError(
            "the loss does not depend on anything that needs a gradient: no backward to profile"
        )


def _whole_graph(
    model: nn.Module, inputs: Sequence[Any], loss: Loss
) -> tuple[Watch | None, list[bool] | None]:
    """A forward in which frozen weights need gradients too, and where it has layers between modules; None of both
    where nothing is frozen. What only frozen layers read has no nodes of autograd, so a step does not show it."""
    frozen = [p for p in model.parameters() if not p.requires_grad and p.is_floating_point()]
    if not frozen:
        return None, None
    watch = Watch(model, Clock(torch.device("cpu")))
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        with hooks(watch):
            watch.finish(loss(model(*inputs)))
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
    _let_go(watch)
    return watch, watch.between


def _let_go(watch: Watch) -> None:
    """Nodes hold hooks that hold the watch: let go of them now, not at some collection."""
    watch.owner.clear()
    watch.hooked.clear()
    watch.made.clear()


def _profiled_step(
    model: nn.Module, inputs: Sequence[Any], loss: Loss, device: torch.device, between: list[bool] | None
) -> Record:
    clock = Clock(device)
    watch = Watch(model, clock, between)
    model.zero_grad(set_to_none=True)
    clock.finish()
    with hooks(watch):
        watch.resumed = clock.stamp()
        value = loss(model(*inputs))
        watch.finish(value)
    begin = clock.stamp()
    value.backward()
    end = clock.stamp()
    clock.finish()
    record = watch.record
    for key, stretches in watch.stamps:
        record.spans.append((key, sum(clock.seconds(start, stop) for start, stop in stretches)))
    last, span = begin, len(watch.stamps) - 1
    for next_span, stamp in watch.order:
        record.backward[span] = record.backward.get(span, 0.0) + clock.seconds(last, stamp)
        last, span = stamp, next_span
    record.backward[span] = record.backward.get(span, 0.0) + clock.seconds(last, end)
    _let_go(watch)
    return record


def _profile(
    model: nn.Module,
    records: Sequence[Record],
    graph: Watch | None,
    name: str,
    batch: int | None,
    inputs: Sequence[Any],
    device: torch.device,
) -> Profile:
    first = records[0] if graph is None else graph.record
    keys = [key for key, _ in (records[0].spans if graph is None else graph.stamps)]
    layers = []
    owner: dict[nn.Parameter, list[int]] = {}
    known = set(model.parameters())
    for span, key in enumerate(keys):
        used = [p for p in dict.fromkeys(first.weights.get(span, [])) if p in known]
        for parameter in used:
            owner.setdefault(parameter, []).append(span)
        mine = [p for p in used if owner[p][0] == span]
        layers.append(
            Layer(
                key,
                statistics.median(record.spans[span][1] for record in records),
                statistics.median(record.backward.get(span, 0.0) for record in records),
                first.outputs[span],
                float(sum(p.numel() * p.element_size() for p in mine)),
            )
        )
    tied = sorted({tuple(spans) for spans in owner.values() if len(spans) > 1})
    label = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return Profile(
        model=name,
        layers=tuple(layers),
        edges=tuple(sorted(first.edges)),
        batch=batch,
        device=label,
        input_bytes=bytes_of(list(inputs)),
        tied=tuple(tied),
    )
