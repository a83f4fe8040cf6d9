"""The same on a CUDA device: parameters up and gradients down through pinned memory, while the device computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from agileml.application import Array, ArrivingTables
from agileml.apps.torch.flat import PARAMETERS, FlatModule, TensorSpan, borrowed
from agileml.apps.torch.objective import Objective
from agileml.apps.torch.step import Stepper

CHUNK = 1 << 20  # elements that go up at a time


class CudaStepper(Stepper):
    """Gradients of a module on the present CUDA device.

    The parameters of a clock go up in chunks through two pinned buffers: one is filled while the other is on its way.
    A gradient goes down on a stream of its own as soon as backward has it, into pinned memory that becomes the
    updates' array; torch's allocator of pinned memory keeps what is freed.
    """

    def __init__(self, flat: FlatModule, objective: Objective, autocast: str | None = None) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        flat.module.to(self.device)
        super().__init__(flat, objective, autocast)
        self._on_device = torch.empty(flat.elements, dtype=flat.dtype, device=self.device)
        flat.point(self._on_device)
        self._up = torch.cuda.Stream(self.device)
        self._down = torch.cuda.Stream(self.device)
        self._staging = [torch.empty(CHUNK, dtype=flat.dtype, pin_memory=True) for _ in range(2)]
        self._sent_up = [torch.cuda.Event() for _ in range(2)]
        self._host: Tensor | None = None
        self._on_the_way: deque[tuple[TensorSpan, torch.cuda.Event]] = deque()

    def reside(self) -> Tensor:
        """The device's own flat tensor: nothing is copied up from now on."""
        self._resident = self._on_device
        return self._on_device

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

    def placed(self, tensor: Tensor) -> Tensor:
        """A tensor of a minibatch on the device."""
        # Torch pins dense tensors of the host only; a collate of the user's may have put them elsewhere.
        can_pin = tensor.layout is torch.strided and tensor.device.type == "cpu"
        return (tensor.pin_memory() if can_pin else tensor).to(self.device, non_blocking=True)

    def _begin(self) -> Array:
        self._on_the_way.clear()
        self._gradient = torch.empty(self.flat.elements, dtype=self.flat.dtype, device=self.device)
        self._host = torch.empty(self.flat.elements, dtype=self.flat.dtype, pin_memory=True)
        self._clear_gaps(self._gradient)
        array: Array = self._host.numpy()
        return array

    def _final(self, span: TensorSpan) -> None:
        assert self._host is not None
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
        while self._on_the_way:
            span, arrived = self._on_the_way.popleft()
            arrived.synchronize()
            super()._final(span)
        self._host = None
