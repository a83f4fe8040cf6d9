"""Copies of a replica's tensors for cuts, made while the machine computes the next clock.

A step changes tensors in place, so it waits for the copies that were begun before it. A clock's forward and backward
lie between, which take longer than a copy unless the model is far larger than its batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from agileml.application import Array, PendingCopy
from agileml.core.parameters.finite import is_sound, slices


@dataclass(frozen=True)
class PieceToCopy:
    """Elements from `at` on of a goal, and the flat tensor of its dtype that they are copied from."""

    goal: Tensor
    at: int
    source: Tensor

    def place(self) -> Tensor:
        """Where the elements go."""
        return self.goal[self.at : self.at + self.source.numel()]


class Copies(Protocol):
    """Copies of tensors on one device, which steps on that device wait for."""

    def room(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Memory on the host for a copy."""

    def begin(self, arrays: Sequence[Array], pieces: Sequence[PieceToCopy]) -> PendingCopy:
        """Begin to copy the pieces. arrays: what is whole when they are copied."""

    def settle(self) -> None:
        """Have this thread's later work on the device wait for the copies that were begun."""


@dataclass(frozen=True)
class _InThread:
    """A copy that a thread makes. work: tells whether all was found finite."""

    arrays: tuple[Array, ...]
    work: Future[bool]

    def is_done(self) -> bool:
        if not self.work.done():
            return False
        self.work.result()  # raises what failed
        return True

    def wait(self) -> None:
        self.work.result()

    def is_finite(self) -> bool:
        return self.work.result()


class HostCopies:
    """On the CPU: a thread of its own copies, one piece after the other. It ends with this object."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "copy")
        self._last: Future[bool] | None = None

    def room(self, elements: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(elements, dtype=dtype)

    def begin(self, arrays: Sequence[Array], pieces: Sequence[PieceToCopy]) -> PendingCopy:
        self._last = self._thread.submit(_copy_all, pieces)
        return _InThread(tuple(arrays), self._last)

    def settle(self) -> None:
        if self._last is not None:
            self._last.result()
            self._last = None


def _copy_all(pieces: Sequence[PieceToCopy]) -> bool:
    """Copy, and tell whether all is finite."""
    # By NumPy: torch would start threads of its own for it, and these compete with the computing.
    is_finite = True
    for piece in pieces:
        goal, source = piece.place().numpy(), piece.source.numpy()
        for part in slices(goal.size):
            np.copyto(goal[part], source[part])
            is_finite = is_finite and is_sound(goal[part])
    return is_finite


@dataclass(frozen=True)
class _OnStream:
    """A copy that a stream makes. pieces: held until then, so that their memory is not used for something else.
    norms: of their numbers, by `norm_of`."""

    arrays: tuple[Array, ...]
    arrived: torch.cuda.Event
    pieces: Sequence[PieceToCopy]
    norms: tuple[Tensor, ...]

    def is_done(self) -> bool:
        return bool(self.arrived.query())

    def wait(self) -> None:
        self.arrived.synchronize()

    def is_finite(self) -> bool:
        return all(math.isfinite(float(norm)) for norm in self.norms)


class DeviceCopies:
    """On a CUDA device: a stream of its own copies into pinned memory, and the next step waits for it on the device, so
    no thread of the host does. torch keeps pinned memory that is freed for the next cut."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._last: torch.cuda.Event | None = None

    def room(self, elements: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(elements, dtype=dtype, pin_memory=True)

    def begin(self, arrays: Sequence[Array], pieces: Sequence[PieceToCopy]) -> PendingCopy:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._last = torch.cuda.Event()
        norm = self.room(1, torch.float64)
        with torch.cuda.stream(self._stream):
            for piece in pieces:
                piece.place().copy_(piece.source, non_blocking=True)
            # The device looks through its numbers in a hundredth of the time that the host would need.
            norm.copy_(norm_of([piece.source for piece in pieces if piece.source.is_cuda]), non_blocking=True)
            self._last.record(self._stream)
        # The others are few: flags and step counts.
        on_host = norm_of([piece.source for piece in pieces if not piece.source.is_cuda])
        return _OnStream(tuple(arrays), self._last, pieces, (norm, on_host))

    def settle(self) -> None:
        if self._last is not None:
            torch.cuda.current_stream(self._device).wait_event(self._last)
            self._last = None


def norm_of(tensors: Sequence[Tensor]) -> Tensor:
    """The 2-norm of the numbers of tensors on one device, as a float64 of shape (1,); NaN or infinite where one of them
    is, or where squares of a dtype overflow."""
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault(tensor.dtype, []).append(tensor)
    norms = [torch.nn.utils.get_total_norm(each).double() for each in kinds.values()]
    return torch.linalg.vector_norm(torch.stack(norms)).reshape(1) if norms else torch.zeros(1).double()


def copies_on(device: torch.device) -> Copies:
    """The copies of tensors on a device."""
    return DeviceCopies(device) if device.type == "cuda" else HostCopies()
