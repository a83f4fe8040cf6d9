"""The course of one step of a module: hooks at the boundaries of calls, and at the nodes of autograd's graph."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import nn


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists, dicts and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_of(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from tensors_of(getattr(value, each.name))


def is_weight(node: Any) -> bool:
    """Whether an autograd node is where a parameter's gradient arrives."""
    return type(node).__name__ == "AccumulateGrad"


def _version(tensor: torch.Tensor) -> int:
    """Counts changes in place; tensors of inference mode have no count."""
    return 0 if tensor.is_inference() else tensor._version


def bytes_of(value: Any) -> float:
    return float(sum(t.numel() * t.element_size() for t in tensors_of(value)))


class Clock:
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


@dataclass
class Call:
    """One call of a module in progress."""

    module: nn.Module
    inner: int = 0


@dataclass
class Record:
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


class Watch:
    """Hooks for one step. between: that of another watch, which saw the whole graph."""

    def __init__(self, model: nn.Module, clock: Clock, between: list[bool] | None = None) -> None:
        self.clock = clock
        # Per boundary whether a layer stands there: as given, where gradients do not show it, and as found.
        self.given, self.between = between, list[bool]()
        self.names = {module: name or "model" for name, module in model.named_modules()}
        self.stack: list[Call] = []
        self.calls: dict[str, int] = {}
        self.record = Record()
        # Per layer its name and the stretches of forward time that belong to it, without our own walking.
        self.stamps: list[tuple[str, list[tuple[Any, Any]]]] = []
        self.pending: list[tuple[Any, Any]] = []
        self.resumed = clock.stamp()
        self.owner: dict[Any, int] = {}
        self.hooked: set[Any] = set()
        self.order: list[tuple[int, Any]] = []
        # Where tensors that autograd does not see (integers) came from.
        self.made: dict[int, tuple[int, torch.Tensor, int]] = {}

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module is called: what came since the last boundary is an operation between modules."""
        self.pending.append((self.resumed, self.clock.stamp()))
        if self.stack:
            self.stack[-1].inner += 1
        self._boundary([args, kwargs])
        self.stack.append(Call(module))
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
        place = len(self.between)
        known = self.given is not None and place < len(self.given)
        self.between.append(self.given[place] if self.given is not None and known else bool(fresh))
        if self.between[-1]:
            kinds = [type(node).__name__.removesuffix("0").removesuffix("Backward") for node in fresh]
            within = self.names[self.stack[-1].module] if self.stack else "outside"
            self._span(f"{within}: {'+'.join(dict.fromkeys(reversed(kinds)))}"[:80], values, [])

    def _fresh(self, values: Any) -> list[Any]:
        """Autograd nodes behind these tensors that no layer has claimed yet (weights' own nodes left out)."""
        found: list[Any] = []
        seen: set[Any] = set()
        todo = [t.grad_fn for t in tensors_of(values) if t.grad_fn is not None]
        while todo:
            node = todo.pop()
            if node in seen or node in self.owner:
                continue
            seen.add(node)
            if not is_weight(node):
                found.append(node)
                todo += [after for after, _ in node.next_functions if after is not None]
        return found

    def _span(self, key: str, output: Any, inputs: Any) -> int:
        """A new layer that made `output`; its nodes are those that no layer has claimed yet."""
        span = len(self.stamps)
        self.stamps.append((key, self.pending))
        self.pending = []
        # A tensor that it passes on unchanged (Identity, dropout of nothing) is the output of the layer that made it.
        made = [t for t in tensors_of(output) if not self._is_known(t)]
        self.record.outputs[span] = bytes_of(made)
        todo = [t.grad_fn for t in tensors_of(output) if t.grad_fn is not None]
        entries = list(todo)
        seen: set[Any] = set()
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            if is_weight(node):
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
        for tensor in tensors_of(inputs):
            if tensor.grad_fn is None and id(tensor) in self.made:
                self.record.edges.add((self.made[id(tensor)][0], span))
        for tensor in made:
            if tensor.grad_fn is None:
                self.made[id(tensor)] = (span, tensor, _version(tensor))
        return span

    def _is_known(self, tensor: torch.Tensor) -> bool:
        """Whether a layer has made this tensor, and nothing has changed it in place since."""
        if tensor.grad_fn is not None:
            return tensor.grad_fn in self.owner
        return id(tensor) in self.made and self.made[id(tensor)][2] == _version(tensor)

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
def hooks(watch: Watch) -> Iterator[None]:
    handles = []
    for module in watch.names:
        handles.append(module.register_forward_pre_hook(watch.before, with_kwargs=True))
        handles.append(module.register_forward_hook(watch.after, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
