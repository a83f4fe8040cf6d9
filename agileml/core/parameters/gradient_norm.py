"""The norm of a whole gradient from sums of squares of its partitions, with the same bits however it is divided.

Every table of gradients is a row of leaves: 16 elements of a dense table, one row of a sparse one. The leaves of all
tables, in order, are the leaves of one binary tree, and a square sum is added up along it. A partition adds up the
largest whole subtrees of its own leaves; the rest of the tree is added where the sums of all partitions meet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush

import numba
import numpy as np

from agileml.application import Array, Update
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import ALIGNMENT, Layout, OnDevice, Sparse, read_only

# Of subtrees, (number, sum): the root is 1, the children of n are 2n and 2n + 1.
SquareSums = tuple[tuple[int, float], ...]

EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True)
class SquareTree:
    """The tree over the gradient's leaves in a layout."""

    layout: Layout

    @cached_property
    def _starts(self) -> list[int]:
        """The first leaf of each table, and the number of leaves of all."""
        starts = [0]
        for table in self.layout.tables:
            leaves = table.rows if table.sparse else -(-table.rows * table.columns // ALIGNMENT)
            starts.append(starts[-1] + (leaves if table.update is Update.GRADIENT else 0))
        return starts

    @cached_property
    def _first(self) -> int:
        """The number of leaf 0."""
        return 1 << max(0, self._starts[-1] - 1).bit_length()

    def sums(self, partition: int, total: Contribution) -> SquareSums:
        """The square sums of a partition's part of the gradient, in float64."""
        found: list[tuple[int, float]] = []
        for index, (table, update) in enumerate(zip(self.layout.tables, total.blocks, strict=True)):
            if update is None or table.update is not Update.GRADIENT:
                continue
            start, stop = self.layout.range_of(index, partition)
            each = 1 if table.sparse else ALIGNMENT
            bounds = start // each, -(-stop // each)
            assert not isinstance(update, OnDevice), table  # a replica takes its own norm
            if isinstance(update, Sparse):
                leaves, at = _square_sums(update.values, table.columns), update.rows.astype(np.int64)
            else:
                leaves, at = _square_sums(update.values, ALIGNMENT), np.arange(bounds[1] - bounds[0])
            first, last = (self._first + self._starts[index] + bound for bound in bounds)
            found += subtrees(first, last, at + first, leaves)
        return tuple(found)


def norm(parts: Iterable[SquareSums]) -> float:
    """The norm of a gradient from the sums of all its partitions."""
    sums = {number: found for part in parts for number, found in part}
    deepest = [-number for number in sums]
    heapify(deepest)
    while len(sums) > 1:
        number = -heappop(deepest)
        if number in sums:
            sums[number >> 1] = sums.pop(number & ~1, 0.0) + sums.pop(number | 1, 0.0)
            heappush(deepest, -(number >> 1))
    return math.sqrt(next(iter(sums.values()), 0.0))


def clip_scale(gradient_norm: float, limit: float) -> float:
    """The factor that brings a gradient's norm down to `limit`, as torch.nn.utils.clip_grad_norm_ computes it."""
    scale = limit / (gradient_norm + EPSILON)
    return scale if scale < 1.0 else 1.0


def _square_sums(values: Array, each: int) -> Array:
    flat = np.ascontiguousarray(values).reshape(-1)
    sums = np.empty(-(-flat.size // each))
    if each == ALIGNMENT:
        _sum_groups(read_only(flat), sums)
    else:
        _sum_rows(read_only(flat), each, sums)
    return sums


def subtrees(first: int, last: int, numbers: Array, sums: Array) -> list[tuple[int, float]]:
    """The largest subtrees over the leaves `first` .. `last` - 1. A leaf that is not among `numbers` has the sum 0."""
    found: list[tuple[int, float]] = []
    while first < last and sums.size:
        if first & 1:
            if numbers[0] == first:
                found.append((first, float(sums[0])))
                numbers, sums = numbers[1:], sums[1:]
            first += 1
        if last & 1 and sums.size and numbers[-1] == last - 1:
            found.append((last - 1, float(sums[-1])))
            numbers, sums = numbers[:-1], sums[:-1]
        first, last = first >> 1, last >> 1
        if sums.size == last - first << 1:  # every leaf is there
            numbers, sums = numbers[::2] >> 1, sums[::2] + sums[1::2]
        elif sums.size:
            numbers, place = np.unique(numbers >> 1, return_inverse=True)
            sums = np.bincount(place, sums)
    return found


@numba.njit(cache=True, nogil=True)
def _sum_groups(values, sums):  # type: ignore[no-untyped-def]
    """The square sum of every 16 values. Halves are added, so that the vector unit can take several at a time."""
    lanes = np.empty(8, np.float64)
    whole = values.size // 16
    for group in range(whole):
        at = group * 16
        for i in range(8):
            low, high = np.float64(values[at + i]), np.float64(values[at + i + 8])
            lanes[i] = low * low + high * high
        for i in range(4):
            lanes[i] += lanes[i + 4]
        sums[group] = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
    if whole < sums.size:
        last = np.zeros(16, np.float64)
        for i in range(whole * 16, values.size):
            last[i - whole * 16] = values[i]
        for i in range(8):
            lanes[i] = last[i] * last[i] + last[i + 8] * last[i + 8]
        for i in range(4):
            lanes[i] += lanes[i + 4]
        sums[whole] = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])


@numba.njit(cache=True, nogil=True)
def _sum_rows(values, columns, sums):  # type: ignore[no-untyped-def]
    for row in range(sums.size):
        total = 0.0
        for i in range(row * columns, (row + 1) * columns):
            value = np.float64(values[i])
            total += value * value
        sums[row] = total


def load_kernels(dtype: str) -> None:
    """Load or compile the kernels that the first clock would otherwise wait for."""
    _sum_groups(read_only(np.zeros(1, dtype)), np.zeros(1))
    _sum_rows(read_only(np.zeros(1, dtype)), 1, np.zeros(1))
