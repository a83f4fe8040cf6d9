"""A torch tensor as a DeviceVector: updates that stay on the device where backward left them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agileml.application import DeviceVector

DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype("float32"),
    torch.float64: np.dtype("float64"),
}


class TensorVector(DeviceVector):
    """A flat tensor, and the event on its device behind which it is whole.

    A device computes behind its host: the event marks all work that this thread's stream had when the vector was made.
    So one cut out of a gradient in the midst of backward is whole when the layers before are, and work on other streams
    need not wait for the rest.
    """

    def __init__(self, tensor: Tensor, written: set[str] | None = None) -> None:
        """tensor: of one dimension, float32 or float64, contiguous. written: names of parameters that backward has
        written, or will have when the sum is taken, in the gradient that this is or was cut out of."""
        assert tensor.ndim == 1 and tensor.is_contiguous(), tensor.shape
        self.written = set() if written is None else written
        self.tensor = tensor
        self.size = tensor.numel()
        self.nbytes = self.size * tensor.element_size()
        self.dtype = DTYPES[tensor.dtype]
        self.ready = self._mark()

    def _mark(self) -> torch.cuda.Event | None:
        """None on the CPU, where nothing is computed behind anybody."""
        if self.tensor.device.type != "cuda":
            return None
        return torch.cuda.current_stream(self.tensor.device).record_event()

    def __getitem__(self, at: slice) -> TensorVector:
        return TensorVector(self.tensor[at], self.written)

    def add(self, other: DeviceVector) -> None:
        assert isinstance(other, TensorVector)
        self.tensor.add_(other.tensor)
        self.written = self.written | other.written
        self.ready = self._mark()

    def plus(self, other: DeviceVector) -> TensorVector:
        assert isinstance(other, TensorVector)
        return TensorVector(self.tensor + other.tensor, self.written | other.written)

    def joined(self, pieces: Sequence[DeviceVector]) -> TensorVector:
        vectors = [piece for piece in pieces if isinstance(piece, TensorVector)]
        tensors = [vector.tensor for vector in vectors]
        written = set.intersection(*(vector.written for vector in vectors))
        first = tensors[0]
        storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        is_whole = len(storages) == 1 and all(
            before.storage_offset() + before.numel() == after.storage_offset()
            for before, after in pairwise(tensors)
        )
        if not is_whole:
            return TensorVector(torch.cat(tensors), written)
        size = sum(tensor.numel() for tensor in tensors)
        return TensorVector(first.as_strided((size,), (1,), first.storage_offset()), written)
