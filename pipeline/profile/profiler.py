"""Profile any torch module as it is: seconds of each layer's forward and backward, bytes, and the graph.

A layer is one call of a module that calls no other module; a module that is called twice gives two layers.
Operations between such calls (additions of residuals, reshapes, losses) become layers of their own.
Time stamps are taken at the boundaries of calls in the forward and, in the backward, where autograd enters a
layer's nodes (each belongs to the layer that made it); so the layers' times add up to the whole pass.
Nothing is patched: hooks are added and removed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import nn

from pipeline.profile.layers import Layer, Profile, ProfileError

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
    tensors = [t for t in _tensors(output) if t.is_floating_point()]
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
    records: list[_Record] = []
    steps: list[float] = []
    total = warm_up + repeats
    for index in range(total):
        # Plain and profiled steps in turn, so that both see the same machine.
        step_s = _plain_step(model, inputs, loss, device)
        record = _profiled_step(model, inputs, loss, device)
        if index >= warm_up:
            steps.append(step_s)
            records.append(record)
        if on_progress is not None:
            on_progress(index + 1, total)
    shapes = {tuple(key for key, _ in record.spans) for record in records}
    if len(shapes) != 1:
        raise ProfileError(
            "the model ran different layers from one step to the next; profile it with inputs that take one path"
        )
    quartiles = statistics.quantiles(steps, n=4) if len(steps) > 1 else [steps[0]] * 3
    spread = (quartiles[2] - quartiles[0]) / statistics.median(steps)
    # Other work on the machine only ever adds time: the faster half says more, of both kinds of step.
    faster = (repeats + 1) // 2
    step_s = statistics.median(sorted(steps)[:faster])
    records = sorted(records, key=_Record.seconds)[:faster]
    result = _profile(model, records, name or type(model).__name__, batch, inputs, device)
    counted = sum(layer.parameter_bytes for layer in result.layers)
    every = sum(p.numel() * p.element_size() for p in model.parameters())
    return Measurement(result, step_s, spread, every - counted)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists, dicts and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _tensors(getattr(value, each.name))


def _is_weight(node: Any) -> bool:
    """Whether an autograd node is where a parameter's gradient arrives."""
    return type(node).__name__ == "AccumulateGrad"


def _bytes(value: Any) -> float:
    return float(sum(t.numel() * t.element_size() for t in _tensors(value)))


def _device(model: nn.Module, inputs: Sequence[Any]) -> torch.device:
    for tensor in (*model.parameters(), *_tensors(list(inputs))):
        return tensor.device
    raise ProfileError("the model has neither parameters nor tensors as inputs: there is nothing to profile")


class _Clock:
    """Time stamps on the CPU, or events in the GPU's stream that are read when all is done."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def stamp(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def finish(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1e3 if self.cuda else float(end - start)


def _plain_step(model: nn.Module, inputs: Sequence[Any], loss: Loss, device: torch.device) -> float:
    """Seconds of forward, loss and backward without any hook."""
    clock = _Clock(device)
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


@dataclass
class _Call:
    """One call of a module in progress."""

    module: nn.Module
    inner: int = 0


@dataclass
class _Record:
    """The record of one profiled step. spans: (layer key, forward seconds) in order; backward: seconds by span;
    nodes: the span of each autograd node; edges between spans; outputs: bytes by span; weights: by span."""

    spans: list[tuple[str, float]] = field(default_factory=list)
    backward: dict[int, float] = field(default_factory=dict)
    edges: set[tuple[int, int]] = field(default_factory=set)
    outputs: dict[int, float] = field(default_factory=dict)
    weights: dict[int, list[nn.Parameter]] = field(default_factory=dict)

    def seconds(self) -> float:
        """Of all layers, forward and backward."""
        return sum(seconds for _, seconds in self.spans) + sum(self.backward.values())


class _Watch:
    """Hooks for one step."""

    def __init__(self, model: nn.Module, clock: _Clock) -> None:
        self.clock = clock
        self.names = {module: name or "model" for name, module in model.named_modules()}
        self.stack: list[_Call] = []
        self.calls: dict[str, int] = {}
        self.record = _Record()
        # Per layer its name and the stretches of forward time that belong to it, without our own walking.
        self.stamps: list[tuple[str, list[tuple[Any, Any]]]] = []
        self.pending: list[tuple[Any, Any]] = []
        self.resumed = clock.stamp()
        self.owner: dict[Any, int] = {}
        self.hooked: set[Any] = set()
        self.order: list[tuple[int, Any]] = []
        # Where tensors that autograd does not see (integers) came from.
        self.made: dict[int, tuple[int, torch.Tensor]] = {}

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module is called: what came since the last boundary is an operation between modules."""
        self.pending.append((self.resumed, self.clock.stamp()))
        if self.stack:
            self.stack[-1].inner += 1
        self._boundary([args, kwargs])
        self.stack.append(_Call(module))
        self.resumed = self.clock.stamp()

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """A module returns. One that called no other is a layer."""
        self.pending.append((self.resumed, self.clock.stamp()))
        call = self.stack.pop()
        assert call.module is module
        if call.inner:
            self._boundary(output)
        else:
            name = self.names[module]
            self.calls[name] = self.calls.get(name, 0) + 1
            again = f"#{self.calls[name]}" if self.calls[name] > 1 else ""
            span = self._span(f"{name}{again} {type(module).__name__}", output, [args, kwargs])
            self.record.weights.setdefault(span, []).extend(module.parameters())
        self.resumed = self.clock.stamp()

    def finish(self, loss: torch.Tensor) -> None:
        """The forward is over: the loss is the last layer."""
        self.pending.append((self.resumed, self.clock.stamp()))
        self._span("loss", loss, [])

    def _boundary(self, values: Any) -> None:
        """Make a layer of the operations between modules, if there were any; the time of none is Python's own
        and belongs to what comes next."""
        fresh = self._fresh(values)
        if fresh:
            kinds = [type(node).__name__.removesuffix("0").removesuffix("Backward") for node in fresh]
            within = self.names[self.stack[-1].module] if self.stack else "outside"
            self._span(f"{within}: {'+'.join(dict.fromkeys(reversed(kinds)))}"[:80], values, [])

    def _fresh(self, values: Any) -> list[Any]:
        """Autograd nodes behind these tensors that no layer has claimed yet (weights' own nodes left out)."""
        found: list[Any] = []
        seen: set[Any] = set()
        todo = [t.grad_fn for t in _tensors(values) if t.grad_fn is not None]
        while todo:
            node = todo.pop()
            if node in seen or node in self.owner:
                continue
            seen.add(node)
            if not _is_weight(node):
                found.append(node)
                todo += [after for after, _ in node.next_functions if after is not None]
        return found

    def _span(self, key: str, output: Any, inputs: Any) -> int:
        """A new layer that made `output`; its nodes are those that no layer has claimed yet."""
        span = len(self.stamps)
        self.stamps.append((key, self.pending))
        self.pending = []
        self.record.outputs[span] = _bytes(output)
        todo = [t.grad_fn for t in _tensors(output) if t.grad_fn is not None]
        entries = list(todo)
        seen: set[Any] = set()
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            if _is_weight(node):
                # Adding to .grad runs right behind the node that made the gradient and counts with it.
                self.record.weights.setdefault(span, []).append(node.variable)
                continue
            if node in self.owner:
                if self.owner[node] != span:
                    self.record.edges.add((self.owner[node], span))
                    self._hook(node)
                continue
            self.owner[node] = span
            todo += [after for after, _ in node.next_functions if after is not None]
        for node in entries:
            self._hook(node)
        for tensor in _tensors(inputs):
            if tensor.grad_fn is None and id(tensor) in self.made:
                self.record.edges.add((self.made[id(tensor)][0], span))
        for tensor in _tensors(output):
            if tensor.grad_fn is None:
                self.made[id(tensor)] = (span, tensor)
        return span

    def _hook(self, node: Any) -> None:
        """Stamp the moment at which the backward enters a layer at this node.

        Autograd runs its nodes in the reverse of the order in which they were made, so a layer's nodes run
        one after another and the entries are all that need a stamp.
        """
        if node in self.hooked or node not in self.owner:
            return
        self.hooked.add(node)
        order, stamp, span = self.order, self.clock.stamp, self.owner[node]

        def entered(_: Any) -> None:
            order.append((span, stamp()))

        node.register_prehook(entered)


@contextmanager
def _hooks(model: nn.Module, watch: _Watch) -> Iterator[None]:
    handles = []
    for module in watch.names:
        handles.append(module.register_forward_pre_hook(watch.before, with_kwargs=True))
        handles.append(module.register_forward_hook(watch.after, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _profiled_step(model: nn.Module, inputs: Sequence[Any], loss: Loss, device: torch.device) -> _Record:
    clock = _Clock(device)
    watch = _Watch(model, clock)
    model.zero_grad(set_to_none=True)
    clock.finish()
    with _hooks(model, watch):
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
    # Nodes hold hooks that hold the watch: let go of them now, not at some collection.
    watch.owner.clear()
    watch.hooked.clear()
    watch.made.clear()
    return record


def _profile(
    model: nn.Module,
    records: Sequence[_Record],
    name: str,
    batch: int | None,
    inputs: Sequence[Any],
    device: torch.device,
) -> Profile:
    first = records[0]
    layers = []
    owner: dict[nn.Parameter, list[int]] = {}
    known = set(model.parameters())
    for span in range(len(first.spans)):
        used = [p for p in dict.fromkeys(first.weights.get(span, [])) if p in known]
        for parameter in used:
            owner.setdefault(parameter, []).append(span)
        mine = [p for p in used if owner[p][0] == span]
        layers.append(
            Layer(
                first.spans[span][0],
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
        input_bytes=_bytes(list(inputs)),
        tied=tuple(tied),
    )
