"""The same on a CUDA device: parameters up and gradients down through pinned memory, while the device computes.

Where a replica has the parameters on the device, neither goes anywhere: the gradient is handed out as a DeviceVector.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agileml.application import Array, ArrivingTables, DeviceVector
from agileml.apps.torch.flat import PARAMETERS, FlatModule, TensorSpan, borrowed
from agileml.apps.torch.objective import Judged, Objective
from agileml.apps.torch.seeding import BeginBatch
from agileml.apps.torch.step import Batch, Ready, Stepper
from agileml.net.tensor_vector import TensorVector

CHUNK = 1 << 20  # elements that go up at a time


@contextmanager
def repeatable() -> Iterator[None]:
    """CUDA's operations give the same bits each time, or raise RuntimeError; as before afterwards."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    fills, searches = torch.utils.deterministic.fill_uninitialized_memory, torch.backends.cudnn.benchmark
    # torch reads it anew at each product. In a process of the run it was there from the start.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False  # else the quickest kernel is searched for, each time anew
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fills
        torch.backends.cudnn.benchmark = searches


@dataclass(frozen=True)
class _LateLoss:
    """The mean loss of a batch on its way to pinned memory."""

    here: Tensor
    arrived: torch.cuda.Event
    items: int

    @classmethod
    def of(cls, loss: Tensor, items: int) -> _LateLoss:
        here = torch.empty(loss.shape, dtype=loss.dtype, pin_memory=True)
        here.copy_(loss, non_blocking=True)
        return cls(here, torch.cuda.current_stream(loss.device).record_event(), items)

    def wait(self) -> float:
        """The sum of the items' losses."""
        self.arrived.synchronize()
        return float(self.here) * self.items


class CudaStepper(Stepper):
    """Gradients of a module on the present CUDA device.

    The parameters of a clock go up in chunks through two pinned buffers: one is filled while the other is on its way.
    A gradient goes down on a stream of its own as soon as backward has it, into pinned memory that becomes the
    updates' array; torch's allocator of pinned memory keeps what is freed. Where a replica has the parameters, both
    stay on the device.
    """

    def __init__(
        self,
        flat: FlatModule,
        objective: Objective,
        autocast: str | None = None,
        *,
        is_deterministic: bool = False,
        is_alone: bool = False,
    ) -> None:
        """is_deterministic: a unit gives the same bits each time; an operation that cannot raises RuntimeError.
        is_alone: nobody compares its seconds, so a unit may end before the device has computed its gradient."""
        self._is_deterministic = is_deterministic
        self._is_alone = is_alone
        self._late: list[_LateLoss] = []
        self.device = torch.device("cuda", torch.cuda.current_device())
        flat.module.to(self.device)
        super().__init__(flat, objective, autocast)
        self._on_device = torch.empty(flat.elements, dtype=flat.dtype, device=self.device)
        flat.move(self._on_device)
        self._up = torch.cuda.Stream(self.device)
        self._down = torch.cuda.Stream(self.device)
        self._staging = [torch.empty(CHUNK, dtype=flat.dtype, pin_memory=True) for _ in range(2)]
        self._sent_up = [torch.cuda.Event() for _ in range(2)]
        self._host: Tensor | None = None  # where a gradient goes down to; None: it stays on the device
        self._on_the_way: deque[tuple[TensorSpan, torch.cuda.Event]] = deque()

    def reside(self) -> Tensor:
        """The device's own flat tensor: nothing is copied up from now on."""
        self._resident = self._on_device
        return self._on_device

    def let_go(self) -> None:
        super().let_go()
        self._on_device = torch.empty(0, dtype=self.flat.dtype, device=self.device)

    def use(self, tables: Mapping[str, Array], rows: Mapping[str, Array] | None = None) -> None:
        """Copy parameters and buffers from the tables of a clock to the device, when all are here."""
        if self._resident is not None:
            self._use_resident(tables)
            return
        if isinstance(tables, ArrivingTables):
            tables.wait_for_all()
        if self.rows:
            self.rows.use(tables, rows)
        self._take_scale(tables)
        source = borrowed(tables[PARAMETERS] if self.flat.spans else np.empty(0, np.float32))
        present = torch.cuda.current_stream(self.device)
        self._up.wait_stream(present)  # nothing reads the parameters of the clock before any more
        for turn, start in enumerate(range(0, self.flat.elements, CHUNK)):
            stop = min(start + CHUNK, self.flat.elements)
            staging, sent = self._staging[turn % 2][: stop - start], self._sent_up[turn % 2]
            sent.synchronize()
            staging.copy_(source[start:stop])
            with torch.cuda.stream(self._up):
                self._on_device[start:stop].copy_(staging, non_blocking=True)
                sent.record(self._up)
        present.wait_stream(self._up)
        self.flat.set_buffers(tables)

    def gradient(
        self,
        batches: Sequence[Batch],
        clock_items: int,
        ready: Callable[[Array | DeviceVector], Ready] | None = None,
        begin: BeginBatch = lambda number: None,
    ) -> tuple[Array | DeviceVector | None, float]:
        with repeatable() if self._is_deterministic else nullcontext():
            return super().gradient(batches, clock_items, ready, begin)

    def judged(self, batch: Batch) -> Judged:
        with repeatable() if self._is_deterministic else nullcontext():
            return super().judged(batch)

    def placed(self, tensor: Tensor) -> Tensor:
        """A tensor of a minibatch on the device."""
        # Torch pins dense tensors of the host only; a collate of the user's may have put them elsewhere.
        can_pin = tensor.layout is torch.strided and tensor.device.type == "cpu"
        return (tensor.pin_memory() if can_pin else tensor).to(self.device, non_blocking=True)

    def _begin(self) -> Array | DeviceVector:
        self._on_the_way.clear()
        self._late.clear()
        self._gradient = torch.empty(self.flat.elements, dtype=self.flat.dtype, device=self.device)
        self._clear_gaps(self._gradient)
        if self._resident is not None:
            self._host = None
            self._written = set()  # the vector has it
            return TensorVector(self._gradient, self._written)
        self._host = torch.empty(self.flat.elements, dtype=self.flat.dtype, pin_memory=True)
        array: Array = self._host.numpy()
        return array

    def _sum_of(self, loss: Tensor, items: int) -> float:
        """Where the parameters are on the device, backward is asked of it without waiting for the loss: it computes on
        while the host does. A loss that is not finite shows later, before anything is made of the gradient."""
        is_here = loss.device.type != "cuda"  # the user's code may compute a loss on the host
        if self._host is not None or is_here:
            return super()._sum_of(loss, items)
        self._late.append(_LateLoss.of(loss.detach(), items))
        return 0.0

    def _late_losses(self) -> float:
        return sum(late.wait() for late in self._late)

    def _final(self, span: TensorSpan) -> None:
        if self._host is None:
            super()._final(span)
            return
        self._down.wait_stream(torch.cuda.current_stream(self.device))
        arrived = torch.cuda.Event()
        with torch.cuda.stream(self._down):
            at = slice(span.start, span.end)
            self._host[at].copy_(self._flat_gradient()[at], non_blocking=True)
            arrived.record(self._down)
        self._finished.add(span.name)  # no gradient may come for it any more
        self._on_the_way.append((span, arrived))
        while self._on_the_way and self._on_the_way[0][1].query():
            super()._final(self._on_the_way.popleft()[0])

    def _finish(self) -> None:
        if self._host is None and not self._is_alone:
            # The seconds of a unit are those of the device.
            torch.cuda.current_stream(self.device).synchronize()
        while self._on_the_way:
            span, arrived = self._on_the_way.popleft()
            arrived.synchronize()
            super()._final(span)
        self._host = None
