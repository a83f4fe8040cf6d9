"""Which tensors of a module lie in the same memory: those that are trained get another."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from agileml.application import Array, InputError


def check_memory(module: nn.Module, trained: Sequence[tuple[str, nn.Parameter]], source: str) -> None:
    """Raise InputError for a tensor in the memory of a parameter that is trained, which will lie elsewhere."""
    extents = sorted((*_extent(parameter), name) for name, parameter in trained)
    for (_, stop, left), (start, _, right) in pairwise(extents):
        if start < stop:
            raise InputError(
                f"{source}: parameters {left!r} and {right!r} lie in the same memory but are two objects, "
                "expected the same Parameter object for tied weights"
            )
    by_name = dict(trained)
    others = [*module.named_buffers(), *((n, p) for n, p in module.named_parameters() if not p.requires_grad)]
    for name, tensor in others:
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided or tensor.is_meta:
            continue  # it has no memory of its own to ask about
        first, end = _extent(tensor)
        for _, stop, parameter in reversed(extents[: bisect_left(extents, (end,))]):
            if stop <= first:
                break
            if np.intersect1d(_places(tensor), _places(by_name[parameter])).size:
                raise InputError(
                    f"{source}: {name!r} lies in the memory of parameter {parameter!r}, which is trained, but is "
                    "another object, expected the same Parameter object for tied weights, or a copy (clone())"
                )


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The bytes that a tensor spans."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _places(tensor: Tensor) -> Array:
    """Where each element is: neighbouring columns of one matrix span the same bytes and share none."""
    found = np.array([tensor.data_ptr()])
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        found = np.add.outer(found, np.arange(size) * (stride * tensor.element_size())).reshape(-1)
    return found
