"""Forward and backward of a unit's items, with the gradient written into one flat array as backward goes on."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agileml.application import Array, ArrivingTables, DeviceVector, InputError
from agileml.apps.torch.flat import PARAMETERS, ConstantBuffer, FlatModule, TensorSpan, borrowed
from agileml.apps.torch.forward.first_use import FirstUses
from agileml.apps.torch.forward.linear import handed_out, second_gradient, write_in_place
from agileml.apps.torch.forward.row_tables import RowTables
from agileml.apps.torch.objective import Judged, Objective, autocasting
from agileml.apps.torch.seeding import BeginBatch
from agileml.core.parameters.layout import ALIGNMENT
from agileml.core.parameters.loss_scale import LOSS_SCALE

Ready = Callable[[int, int], None]
# Below it no loss needs a scale: a gradient that overflows here is not one of float16's.
LEAST_SCALE = 2.0**-16
HERE_ALONE = 2  # references to an array that only a local variable and the call that counts them have


@dataclass(frozen=True)
class Batch:
    """A tree of tensors where the module computes, and the number of items in it."""

    tree: Any
    items: int


class Stepper:
    """Gradients of a module on the CPU.

    The parameters are views of the array that a clock reads and are never copied. Linear layers write their weights'
    gradients into the flat array themselves; any other is copied there as soon as backward has it, while it is warm.
    """

    device = torch.device("cpu")

    def __init__(self, flat: FlatModule, objective: Objective, autocast: str | None = None) -> None:
        self.flat = flat
        self.module = flat.module
        self._objective = objective
        self._autocast = autocast
        self._address = 0
        self._parameters: Tensor | None = None
        self._resident: Tensor | None = None
        self._gradient: Tensor | None = None
        # The gradient before, which is used again once it has no reader.
        self._kept: tuple[Tensor, Array] | None = None
        self._ready: Ready | None = None
        self._written: set[str] = set()  # parameters that have a gradient in this unit
        self._is_last = True  # this backward is the unit's last
        self._finished: set[str] = set()  # parameters whose gradient is final
        self.loss_scale: float | None = None  # of the present clock; None: losses are not scaled
        self._arriving: ArrivingTables | None = None  # the tables of a clock that may not be here yet
        self._first_uses = FirstUses(
            [(span, parameter) for span, (_, parameter) in zip(flat.spans, flat.parameters, strict=True)],
            self.module,
        )
        self._places = write_in_place(self.module, {id(p): name for name, p in flat.parameters})
        self.rows = RowTables(flat, self.device)
        for span, (_, parameter) in zip(flat.spans, flat.parameters, strict=True):
            parameter.register_post_accumulate_grad_hook(self._hook(span))

    def reside(self) -> Tensor:
        """The flat tensor that the parameters lie in from now on: `use` leaves them as they are there."""
        self._resident = torch.zeros(self.flat.elements, dtype=self.flat.dtype)
        self.flat.point(self._resident)
        return self._resident

    def let_go(self) -> None:
        """Let go of the parameters' and the gradient's memory. The module's hooks keep the stepper itself."""
        self._parameters, self._address, self._kept = None, 0, None
        self.flat.empty()

    def use(self, tables: Mapping[str, Array], rows: Mapping[str, Array] | None = None) -> None:
        """Take parameters and buffers from the tables of a clock. Parameters may still be on their way.

        rows: of the tables that are read by row those that are here, ascending; None: all.
        """
        if self._resident is not None:
            self._use_resident(tables)
            return
        self._arriving = tables if isinstance(tables, ArrivingTables) else None
        if self._arriving is not None:
            for name in tables:
                if name != PARAMETERS:
                    self._arriving.wait(name, 0, ALIGNMENT if name == LOSS_SCALE else None)
        self._take_scale(tables)
        if self.rows:
            self.rows.use(tables, rows)
        array = tables[PARAMETERS] if self.flat.spans else None
        if array is not None and array.ctypes.data != self._address:
            self._parameters = borrowed(array)  # held, so that an equal address means the same memory
            self._address = array.ctypes.data
            self.flat.point(self._parameters)
        self.flat.set_buffers(tables)

    def _take_scale(self, tables: Mapping[str, Array]) -> None:
        if LOSS_SCALE in tables:
            self.loss_scale = float(tables[LOSS_SCALE].reshape(-1)[0])

    def _use_resident(self, tables: Mapping[str, Array]) -> None:
        """A clock has no parameters here; the evaluation after training has."""
        assert self._resident is not None
        if PARAMETERS in tables:
            self._resident.copy_(borrowed(tables[PARAMETERS]))
        self.flat.set_buffers(tables)

    def placed(self, tensor: Tensor) -> Tensor:
        """A tensor of a minibatch where the module computes."""
        return tensor

    def judged(self, batch: Batch) -> Judged:
        """The mean loss, the output and the target, without a gradient."""
        self.wait_for_all()
        with torch.no_grad(), autocasting(self.device, self._autocast):
            return self._objective(self.module, batch.tree)

    def record_look_ups(self, batch: Batch) -> None:
        """Note in `rows` which rows a forward of the batch looks up, whatever parameters there are."""
        with autocasting(self.device, self._autocast):
            self.rows.record_look_ups(lambda: self._objective(self.module, batch.tree), "training")

    def gradient(
        self,
        batches: Sequence[Batch],
        clock_items: int,
        ready: Callable[[Array | DeviceVector], Ready] | None = None,
        begin: BeginBatch = lambda number: None,
    ) -> tuple[Array | DeviceVector | None, float]:
        """(the gradient of sum of losses / clock_items, the sum of losses) as a new flat array; rows' are in `rows`.

        The loss is the mean over a batch; the gradients of several batches are added up, one backward after the other.
        No gradient (None) where a loss is not finite, unless the clock may overflow. Raises InputError where no loss
        scale helps any more. `ready(array)` is asked for what to call with (start, stop) whenever a range is final.
        `begin(number)` is called before each batch.
        """
        versions = self.flat.versions()
        constants = self.flat.constants()
        try:
            array = self._begin()
            self._ready = None if ready is None else ready(array)
            self._written.clear()
            self._finished.clear()
            self.rows.forget_gradients()
            total = 0.0
            for number, batch in enumerate(batches):
                begin(number)
                self._is_last = batch is batches[-1]
                total += self._backward(
                    batch, clock_items, lambda loss: self._check(loss, versions, constants)
                )
                if not math.isfinite(total) and not self.may_overflow:
                    return None, total
            for span in self.flat.spans:
                if span.name not in self._written:  # no loss reaches it: the optimizer leaves it alone
                    self._flat_gradient()[span.start : span.end] = -0.0
                if span.name not in self._finished:
                    self._complete(span)
            self._finish()
            total += self._late_losses()
            if not math.isfinite(total) and not self.may_overflow:
                return None, total
            self._check_scale()
        finally:
            self._gradient = self._ready = None
            for _, parameter in self.flat.parameters:
                parameter.grad = None
            if self._kept is not None and self._kept[0].requires_grad:
                # A backward with create_graph made it a part of its graph, which would stay as long as this tensor.
                self._kept[0].detach_()
        return array, total

    def _backward(self, batch: Batch, clock_items: int, check: Callable[[Tensor], None]) -> float:
        """Forward and backward of one batch; returns the sum of its items' losses. No backward of a loss that is known
        not to be finite. `check(loss)` raises InputError for a loss that cannot be used."""
        with self._first_use(), autocasting(self.device, self._autocast):
            loss = self._objective(self.module, batch.tree).loss
        self.wait_for_all()  # backward may read anything
        check(loss)
        total = self._sum_of(loss, batch.items)
        if math.isfinite(total) or self.may_overflow:
            with self._filling():
                self._weighted(loss, batch.items / clock_items).backward()
        return total

    def _sum_of(self, loss: Tensor, items: int) -> float:
        """The sum of the items' losses, of their mean: now, or 0 where it comes with `_late_losses`."""
        return float(loss.detach()) * items

    # -- the loss scale ---------------------------------------------------------------------------------------

    def _weighted(self, loss: Tensor, share: float) -> Tensor:
        """A batch's share of the clock's loss, as backward begins with it."""
        if self.loss_scale is None:
            return loss * share
        # The scale alone may be more than float16 holds.
        wide = loss.float() if loss.dtype == torch.float16 else loss
        return wide * (share * self.loss_scale)

    @property
    def may_overflow(self) -> bool:
        """A loss or a gradient that is not finite costs the clock its step, not the run."""
        return self.loss_scale is not None and self.loss_scale > LEAST_SCALE

    def row_updates(self) -> dict[str, tuple[Array, Array]]:
        """(rows, gradients) of the last unit by table that is read by row, where a loss reaches one."""
        found = self.rows.updates()
        if self.loss_scale is None:
            return found
        return {
            name: (rows, some * some.dtype.type(1.0 / self.loss_scale))
            for name, (rows, some) in found.items()
        }

    def _check_scale(self) -> None:
        if self.loss_scale is None or self.may_overflow:
            return
        of_rows = (values for _, values in self.rows.updates().values())
        is_finite = bool(torch.isfinite(self._flat_gradient()).all())
        if not is_finite or not all(np.isfinite(values).all() for values in of_rows):
            raise InputError(
                f"model.autocast: found gradients that are not finite at a loss scale of {self.loss_scale:g}, expected "
                "finite ones by then: the training diverged, or float16 does not hold its numbers (bfloat16 may)"
            )

    # -- parameters that are still on their way ---------------------------------------------------------------

    def _first_use(self) -> AbstractContextManager[Any]:
        """The context of a forward: it waits for each parameter at its first use."""
        tables = self._arriving
        if tables is None:
            return nullcontext()
        if self._first_uses.is_compiled:
            self.wait_for_all()
            return nullcontext()
        unseen = self._first_uses.unseen()
        if len(unseen) == len(self.flat.spans):  # none was seen yet
            self.wait_for_all()
            return self._first_uses.learning()
        for span in unseen:
            tables.wait(PARAMETERS, span.start, span.stop)
        return self._first_uses.waiting(lambda span: tables.wait(PARAMETERS, span.start, span.stop))

    def wait_for_all(self) -> None:
        """Wait until all parameters of the clock are here."""
        if self._arriving is not None:
            self._arriving.wait_for_all()
            self._arriving = None

    # -- where gradients go -----------------------------------------------------------------------------------

    def _begin(self) -> Array | DeviceVector:
        """Make the flat gradient; returns the array of it that the caller gets."""
        tensor, array = self._kept if self._kept is not None else (None, None)
        self._kept = None
        if tensor is None or array is None or sys.getrefcount(array) > HERE_ALONE:
            tensor = torch.empty(self.flat.elements, dtype=self.flat.dtype)
            array = tensor.numpy()
        self._kept = tensor, array
        self._gradient = tensor
        self._clear_gaps(tensor)
        return array

    def _clear_gaps(self, gradient: Tensor) -> None:
        for span in self.flat.spans:
            if span.end > span.stop:
                gradient[span.stop : span.end] = 0

    def _filling(self) -> AbstractContextManager[None]:
        """The context of a backward: layers write there what has no gradient yet. Any other backward, as one that
        `torch.autograd.grad` makes, returns arrays of its own."""
        flat = self._flat_gradient()
        free = [s for s in self.flat.spans if s.name in self._places and s.name not in self._written]
        return handed_out(self._places, {span.name: partial(span.of, flat) for span in free})

    def _complete(self, span: TensorSpan) -> None:
        """A span of the flat gradient has all that backward adds: it is the loss's own from now on, and final."""
        if self.loss_scale is not None:
            self._flat_gradient()[span.start : span.stop].mul_(1.0 / self.loss_scale)
        self._final(span)

    def _final(self, span: TensorSpan) -> None:
        """A span of the flat gradient is final."""
        self._finished.add(span.name)
        if self._ready is not None:
            self._ready(span.start, span.end)

    def _finish(self) -> None:
        """All spans are complete."""

    def _late_losses(self) -> float:
        """The sums of items' losses that `_sum_of` has put off."""
        return 0.0

    def _flat_gradient(self) -> Tensor:
        assert self._gradient is not None, "backward outside of gradient()"
        return self._gradient

    def _hook(self, span: TensorSpan) -> Callable[[nn.Parameter], None]:
        def accumulated(parameter: nn.Parameter) -> None:
            gradient = parameter.grad
            assert gradient is not None, span
            parameter.grad = None
            self._write(span, gradient.to_dense() if gradient.is_sparse else gradient)

        return accumulated

    def _write(self, span: TensorSpan, gradient: Tensor) -> None:
        goal = span.of(self._flat_gradient())
        self._refuse_second(span)
        if span.name in self._written:
            goal.add_(gradient)
        elif gradient.data_ptr() != goal.data_ptr() or gradient.stride() != goal.stride():
            goal.copy_(gradient)
        self._written.add(span.name)
        if span.name in self._places:
            self._places[span.name].view = None  # a layer that comes to it later would overwrite it
        if self._is_last and span.name not in self._finished:
            self._complete(span)

    def _refuse_second(self, span: TensorSpan) -> None:
        """Raise RuntimeError where the first gradient is on its way already, or divided by the loss scale: reentrant
        checkpointing walks through a shared layer twice."""
        is_taken = self._ready is not None or self.loss_scale is not None or self.device.type == "cuda"
        if is_taken and span.name in self._finished:
            raise second_gradient(span.name)

    def _check(
        self, loss: Tensor, versions: Sequence[tuple[str, int]], constants: Sequence[ConstantBuffer]
    ) -> None:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise InputError(
                f"model.loss: the loss returned {found}, expected one number, the mean over the items"
            )
        if not loss.requires_grad:
            raise InputError(
                "model.loss: the loss does not depend on a parameter that needs a gradient, expected one that does"
            )
        self.flat.check_versions(versions)
        for constant, value in zip(constants, self.flat.constants(), strict=True):
            if not constant.is_same(value):
                raise InputError(
                    f"model.module: forward changed the buffer {value.name!r} that is not in the state dict, expected "
                    "register_buffer(..., persistent=True) for what changes, and a plain attribute for what forward "
                    "computes anew"
                )
