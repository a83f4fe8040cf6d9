"""The parameters of a module and the state of a torch optimizer, where one machine computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from agileml.application import Array, DeviceVector, LossScaleRule, Parts, PendingCopy, Ranges
from agileml.apps.torch.flat import PARAMETERS, TensorSpan, borrowed
from agileml.apps.torch.resident.copies import PieceToCopy, copies_on
from agileml.apps.torch.resident.state import TorchOptimizer
from agileml.apps.torch.step import Stepper
from agileml.core.parameters.gradient_norm import EPSILON
from agileml.core.parameters.groups import reached
from agileml.core.parameters.layout import ALIGNMENT
from agileml.core.parameters.loss_scale import LOSS_SCALE, LossScale, after_clock
from agileml.net.tensor_vector import TensorVector

BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


class TorchReplica:
    """Steps a module's parameters in place, on the device that computes their gradients.

    A parameter that no machine had a gradient for is left alone, as in torch. The learning rates of all groups follow
    the schedule of the job. Where losses are scaled, a clock whose gradient is not finite takes no step.
    """

    def __init__(
        self,
        stepper: Stepper,
        rule: TorchOptimizer,
        rate_at: Callable[[int], float],
        lock: threading.RLock,
        threads: int,
        scaling: LossScaleRule | None = None,
        *,
        is_alone: bool = False,
    ) -> None:
        """lock: held while a unit is computed. threads: of torch, in a step. scaling: of the losses. is_alone: no other
        machine steps along the same sums."""
        self._is_alone = is_alone
        self._stepper = stepper
        self._rule = rule
        self._rate_at = rate_at
        self._lock = lock
        self._threads = threads
        self._scaling = scaling
        self._scales = np.empty(0)  # the table of the loss scale
        self._spans = stepper.flat.spans
        self._bounds = (
            np.array([span.start for span in self._spans], np.int64),
            np.array([span.end for span in self._spans], np.int64),
        )
        self._values = stepper.reside()
        self._copies = copies_on(self._values.device)
        self._firsts = torch.tensor(self._bounds[0], device=self._values.device)
        self._parameters: list[nn.Parameter] = [parameter for _, parameter in stepper.flat.parameters]
        self._optimizer = rule.over(self._parameters)
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        self._own: Ranges | None = None  # the elements that are stepped here; None: all

    def place(self, values: Mapping[str, Parts], steps: Mapping[str, Ranges] | None = None) -> None:
        """Take parameters and optimizer state."""
        self._copies.settle()
        with self._lock, torch.no_grad():
            for at, part in values[PARAMETERS]:
                self._values[at : at + part.size].copy_(borrowed(part))
            self._own = None if steps is None else [(a, b) for a, b in steps[PARAMETERS] if a < b]
            self._rule.load(self._optimizer, values)
            if self._scaling is not None:
                self._scales = np.concatenate([part for _, part in values[LOSS_SCALE]])
                self._stepper.loss_scale = LossScale.of(self._scales).scale

    def read(self, table: str, start: int, stop: int) -> Array:
        """Elements [start, stop) of a table, as a new array on the host."""
        if table == PARAMETERS:
            array: Array = self._values[start:stop].cpu().numpy().copy()
            return array
        if table == LOSS_SCALE:
            return self._scales[start:stop].copy()
        return self._rule.read(self._optimizer, self._parameters, table, start, stop)

    def copy(self, ranges: Sequence[tuple[str, int, int]]) -> PendingCopy:
        """Begin to copy elements of tables to the host."""
        arrays, pieces = [], []
        for table, start, stop in ranges:
            if table == LOSS_SCALE:
                arrays.append(self.read(table, start, stop))
                continue
            dtype = self._values.dtype if table == PARAMETERS else self._rule.dtype_of(table)
            goal = self._copies.room(stop - start, dtype)
            arrays.append(goal.numpy())
            pieces += [PieceToCopy(goal, at, source) for at, source in self._sources(table, start, stop)]
        return self._copies.begin(arrays, pieces)

    def _sources(self, table: str, start: int, stop: int) -> Iterable[tuple[int, Tensor]]:
        if table == PARAMETERS:
            return [(0, self._values[start:stop].detach())]
        return self._rule.pieces(self._optimizer, self._parameters, table, start, stop)

    def step(self, clock: int, updates: Mapping[str, Array | DeviceVector]) -> None:
        """One step of the optimizer along the mean gradient over a clock's items."""
        found = updates[PARAMETERS]
        has_gradient = self._reached(found)
        gradient = _tensor_of(found)
        before = torch.get_num_threads()
        self._copies.settle()
        with self._lock:
            torch.set_num_threads(self._threads)
            try:
                self._take(clock, gradient.to(self._values.device), has_gradient)
                with torch.no_grad():
                    for start, stop in self._own or ():
                        gradient[start:stop].copy_(self._values[start:stop])
            finally:
                torch.set_num_threads(before)

    def _reached(self, found: Array | DeviceVector) -> Sequence[bool]:
        """Of each parameter, whether a unit had a gradient for it. All machines see it in the sum, so that they agree
        where all that units had is -0.0."""
        if isinstance(found, TensorVector):
            if self._is_alone and all(span.name in found.written for span in self._spans):
                return [True] * len(self._spans)
            return reached_on_device(found.tensor, self._spans, self._firsts)
        assert isinstance(found, np.ndarray), type(found)
        is_reached: list[bool] = reached(found.reshape(-1), *self._bounds).tolist()
        return is_reached

    def complete(self, updates: Mapping[str, Array | DeviceVector]) -> None:
        """Take the parameters that other machines have stepped."""
        assert self._own is not None, "this replica steps all parameters"
        found = _tensor_of(updates[PARAMETERS])
        bounds = [0, *(bound for own in self._own for bound in own), found.numel()]
        with self._lock, torch.no_grad():
            for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
                self._values[start:stop].copy_(found[start:stop])

    def _steps(self, span: TensorSpan) -> bool:
        return self._own is None or any(start <= span.start < stop for start, stop in self._own)

    def _take(self, clock: int, gradient: Tensor, has_gradient: Sequence[bool]) -> None:
        if self._scaling is not None:
            is_finite = bool(torch.isfinite(gradient).all())
            state = after_clock(LossScale.of(self._scales), self._scaling, is_finite=is_finite)
            self._scales = np.tile(state.as_block(), self._scales.size // ALIGNMENT)
            self._stepper.loss_scale = state.scale
            if not is_finite:
                return
        found = zip(self._spans, self._parameters, has_gradient, strict=True)
        stepped = [(span, p) for span, p, is_reached in found if is_reached and self._steps(span)]
        for span, parameter in stepped:
            parameter.grad = span.of(gradient)
        if (limit := self._rule.section["clip_norm"]) is not None:
            # As clip_grad_norm_, over the flat gradient: what no parameter has is 0 there.
            norm = torch.linalg.vector_norm(gradient)
            gradient.mul_(torch.clamp(limit / (norm + EPSILON), max=1.0))
        factor = self._rate_at(clock) / self._rule.section["learning_rate"]
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self._rule.begin_momentum(self._optimizer, [parameter for _, parameter in stepped])
        self._optimizer.step()
        for _, parameter in stepped:
            parameter.grad = None


def _tensor_of(found: Array | DeviceVector) -> Tensor:
    """Flat updates as a tensor in the same memory."""
    if isinstance(found, TensorVector):
        return found.tensor
    assert isinstance(found, np.ndarray), type(found)
    return torch.from_numpy(found.reshape(-1))


def reached_on_device(gradient: Tensor, spans: Sequence[TensorSpan], firsts: Tensor) -> list[bool]:
    """For each span of a summed gradient, whether an element is not -0.0: then some unit had a gradient for it.

    It waits for the gradient. The spans' first elements, at `firsts`, come down together; only a span whose first is
    -0.0 is looked through.
    """
    bits = gradient.view(BITS[gradient.dtype])
    least = torch.iinfo(bits.dtype).min  # the bits of -0.0
    found = (bits[firsts] != least).tolist()
    return [
        is_reached or bool((bits[span.start : span.stop] != least).any())
        for span, is_reached in zip(spans, found, strict=True)
    ]
