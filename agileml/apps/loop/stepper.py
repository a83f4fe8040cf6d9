"""Gradients of the user's own loop: its backward fills the flat array, and `step()` says that it is complete."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from agileml.application import InputError
from agileml.apps.loop.script import Script, Turn
from agileml.apps.torch.cuda import CudaStepper
from agileml.apps.torch.flat import TensorSpan
from agileml.apps.torch.objective import Judged
from agileml.apps.torch.seeding import rewind_to_here
from agileml.apps.torch.step import Batch, Stepper


def no_objective(module: nn.Module, batch: Any) -> Judged:
    """The loss of a loop is the script's affair."""
    raise AssertionError("the script computes its loss itself")


class LoopStepper(Stepper):
    """A Stepper whose batches go through the body of the script's loop.

    A span is final at step(). Once it is known how often the loop calls backward for a batch, it is final when the last
    of these calls has its gradient, as in a Stepper. Until step() the script sees the gradients in `parameter.grad`,
    and must not change them: they are this machine's share, and may be on their way already. A backward outside of a
    batch, as of an evaluation between a step and the next batch, is the script's own affair.
    """

    is_tried = False  # of the batches before any machine starts, on which more is checked
    _is_of_batch = False  # a backward of the present batch goes on

    script: Script
    # The present clock: itself, the number of the pass, the schedule's steps before it, and the factor of the rates.
    turn_of: Callable[[], tuple[int, int, int, float]]

    def record_look_ups(self, batch: Batch) -> None:
        """The loop's body cannot run without a step, so the batch is handed to the model as usual: all but the target,
        or a mapping as it is."""
        self.rows.record_look_ups(lambda: self._called_as_usual(batch.tree), "training")

    def _called_as_usual(self, tree: Any) -> None:
        try:
            if isinstance(tree, Mapping):
                self.module(**tree)
            elif isinstance(tree, Sequence) and len(tree) > 1:
                self.module(*tree[:-1])
            else:
                self.module(tree)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                "prepare(): the model has an embedding with sparse=True, whose rows are looked up before the loop gets "
                f"a batch, and model(*batch[:-1]) failed ({type(error).__name__}: {error}); expected batches (input, "
                "..., target) or mappings of the model's arguments, or a class of agileml.Training"
            ) from error

    def _backward(self, batch: Batch, clock_items: int, check: Callable[[Tensor], None]) -> float:
        self.wait_for_all()  # the script may read any of them at once
        is_last_piece, share = self._is_last, batch.items / clock_items
        self._versions = self.flat.versions()
        self._shown: dict[str, Tensor] = {}
        self._version, self._sums = -1, list[str]()

        def backward(
            loss: Tensor, original: Callable[[Tensor], None], number: int, usual: int | None
        ) -> float:
            self._check_parameters()
            check(loss)
            found = self._sum_of(loss, batch.items)
            if usual is not None and number > usual and self._finished:
                raise InputError(
                    f"backward(): found {number} calls for one batch, expected {usual} as for the batches before: "
                    "their gradients are on their way"
                )
            self._is_last = is_last_piece and number == usual
            if math.isfinite(found) or self.may_overflow:
                self._is_of_batch = True
                try:
                    with self._filling():
                        original(self._weighted(loss, share))
                finally:
                    self._is_of_batch = False
                self._version = self._flat_gradient()._version
                self._sums = self._sums_if_tried()
            return found

        of_clock = self.turn_of()
        scale, may_overflow = self.loss_scale, self.may_overflow
        rewind = rewind_to_here(self.device)
        turn = Turn(batch.tree, *of_clock, backward, self._changed, rewind, scale, may_overflow)
        loss = self.script.turn(turn)
        self._is_last = is_last_piece
        for _, parameter in self.flat.parameters:
            parameter.grad = None
        self._shown.clear()
        return loss

    def _check_parameters(self) -> None:
        """Raise InputError for a parameter that no table has a place for: it would not move."""
        if (name := self.flat.late_parameter()) is not None:
            raise InputError(
                f"backward(): found parameter {name!r} that needs a gradient and did not at prepare(), expected it to "
                "need a gradient at prepare(); the loop may freeze it until it is to train"
            )

    def _changed(self) -> str | None:
        """A sentence if the gradients are not those that backward left. Raises InputError for changed parameters."""
        self.flat.check_versions(self._versions)
        flat = self._flat_gradient()
        is_same = all(
            parameter.grad is self._shown[name] and parameter.grad.data_ptr() == span.of(flat).data_ptr()
            for span, (name, parameter) in zip(self.flat.spans, self.flat.parameters, strict=True)
            if name in self._shown
        )
        if is_same and flat._version == self._version and self._sums_if_tried() == self._sums:
            return None
        return (
            "optimizer.step(): found gradients that were changed since backward() (by clip_grad_norm_, zero_grad or a "
            "GradScaler?), expected them as they are: each machine has its share alone; prepare(..., clip_norm=1.0) "
            "clips the whole, and prepare(..., scaler=scaler) scales the losses"
        )

    def _sums_if_tried(self) -> list[str]:
        """The sum of each gradient's elements, as text: it also shows changes that torch does not count, as those of
        `parameter.grad.data`."""
        shown = self._shown.values() if self.is_tried else ()
        return [repr(gradient.sum(dtype=torch.float64).item()) for gradient in shown]

    def _hook(self, span: TensorSpan) -> Callable[[nn.Parameter], None]:
        take = super()._hook(span)

        def accumulated(parameter: nn.Parameter) -> None:
            if not self._is_of_batch:
                return
            shown = self._shown.get(span.name)
            if shown is None:
                take(parameter)
                self._shown[span.name] = parameter.grad = span.of(self._gradient)
                return
            self._refuse_second(span)
            if parameter.grad is not shown:  # added up in an array of its own
                assert parameter.grad is not None
                shown.copy_(parameter.grad)
                parameter.grad = shown
            if self._is_last and span.name not in self._finished:
                self._complete(span)

        return accumulated


class LoopCudaStepper(LoopStepper, CudaStepper):
    """The same on a CUDA device."""
