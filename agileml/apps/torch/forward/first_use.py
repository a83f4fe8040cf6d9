"""Waiting for a parameter when the module first uses it, so that forward begins before the last layers are here.

Every torch function that a forward calls passes through `FirstUse` with its arguments, from any caller: a layer, a
parent that reads its child's weight, a function of weights alone. So tied weights, modules that are called twice and
containers of parameters need no rule of their own. Calls of torch without a Python argument (TorchScript) are not seen:
the first forward, which has everything, learns which parameters are, and waits for the others come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from agileml.apps.torch.flat import TensorSpan
from agileml.apps.torch.forward.linear import is_compiled

_ABOUT = {  # what asks about a tensor and not for its values
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "requires_grad", "ndim", "is_leaf", "layout", "grad", "grad_fn")
} | {Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.stride}


class FirstUse(TorchFunctionMode):
    """A context of one forward: `wait(span)` is called once for each parameter, before its first use."""

    def __init__(self, spans: dict[int, TensorSpan], wait: Callable[[TensorSpan], None]) -> None:
        """`spans`: of the parameters to wait for, by id."""
        super().__init__()
        self._spans = spans
        self._wait = wait

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._spans and func not in _ABOUT:
            self._look(args)
            if kwargs:
                self._look(kwargs.values())
        return func(*args, **(kwargs or {}))

    def _look(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor):
                span = self._spans.pop(id(value), None)
                if span is not None:
                    self._wait(span)
            elif isinstance(value, list | tuple):
                self._look(value)
            elif isinstance(value, dict):
                self._look(value.values())


class FirstUses:
    """Which parameters of a module its forward is seen to use."""

    def __init__(self, parameters: Iterable[tuple[TensorSpan, nn.Parameter]], module: nn.Module) -> None:
        hidden = {
            id(parameter)
            for child in module.modules()
            if isinstance(child, torch.jit.ScriptModule)
            for parameter in child.parameters()
        }
        self._spans = {id(parameter): span for span, parameter in parameters}
        self._visible = {key: span for key, span in self._spans.items() if key not in hidden}
        # A compiled module reads its parameters behind Python's back, and a mode would have it compiled again.
        self.is_compiled = any(map(is_compiled, module.modules()))
        self._seen: set[str] = set()

    def unseen(self) -> list[TensorSpan]:
        """The parameters that no forward was seen to use: wait for them before it begins."""
        return [span for span in self._spans.values() if span.name not in self._seen]

    def learning(self) -> FirstUse:
        """The context of a forward that has all its parameters."""
        return FirstUse(dict(self._visible), lambda span: self._seen.add(span.name))

    def waiting(self, wait: Callable[[TensorSpan], None]) -> FirstUse:
        """The context of a forward whose parameters are still coming, those apart that were never seen."""
        spans = {key: span for key, span in self._spans.items() if span.name in self._seen}
        return FirstUse(spans, wait)
