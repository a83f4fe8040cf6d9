"""Waiting for a parameter when the module first uses it, so that forward begins before the last layers are here.

Every torch function that a forward calls passes through `FirstUse` with its arguments, from any caller: a layer, a
parent that reads its child's weight, a function of weights alone. So tied weights, modules that are called twice and
containers of parameters need no rule of their own. Calls of torch without a Python argument (TorchScript) are not seen:
the first forward, which has everything, learns which parameters are seen before anything reads them, and waits for the
others come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

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


class _HiddenUse(TorchDispatchMode):
    """A context of one forward, around which a `FirstUse` is: `hidden` has the parameters that an operation reads
    while these are still to be seen, such as those that a TorchScript function gets."""

    def __init__(self, to_see: Mapping[int, TensorSpan]) -> None:
        super().__init__()
        self._to_see = to_see
        self.hidden: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for value in (*args, *(kwargs or {}).values()):
            for each in value if isinstance(value, list | tuple) else (value,):
                if isinstance(each, Tensor) and (span := self._to_see.get(id(each))) is not None:
                    self.hidden.add(span.name)
        return func(*args, **(kwargs or {}))


def _has_script_functions() -> bool:
    """Whether this process has functions of TorchScript. Only then each operation is looked at: torch.compile leaves
    functions alone where one looks, and their bits would be others."""
    return bool(torch.jit._state._python_cu.get_functions())


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

    @contextmanager
    def learning(self) -> Iterator[None]:
        """The context of a forward that has all its parameters."""
        to_see, seen = dict(self._visible), set[str]()
        behind = _HiddenUse(to_see) if _has_script_functions() else None
        with FirstUse(to_see, lambda span: seen.add(span.name)), behind or nullcontext():
            yield
        self._seen = seen - (behind.hidden if behind else set())

    def waiting(self, wait: Callable[[TensorSpan], None]) -> FirstUse:
        """The context of a forward whose parameters are still coming, those apart that were never seen."""
        spans = {key: span for key, span in self._spans.items() if span.name in self._seen}
        return FirstUse(spans, wait)
