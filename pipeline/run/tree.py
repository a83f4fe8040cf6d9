"""Sums of gradients along one binary tree over the microbatches of a minibatch.

Leaf i is microbatch i; a node is the sum of its left and its right half, and halves without a leaf are left out. So the
sum has the same bits whichever worker computed which microbatch, and in whatever order they arrive. It is the tree
along which the engine adds up the units of a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

Tensors = list[Tensor | None]
Node = tuple[int, int, Tensors]  # first leaf, number of places (a power of two), sums


class TreeSum:
    """The sum of one update, while it grows. Tensors that are added must be the tree's own: it overwrites them."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], Tensors] = {}

    def add(self, first: int, size: int, tensors: Tensors) -> None:
        """Add the sum of the aligned leaves first .. first + size - 1, and merge what is complete."""
        assert first % size == 0, (first, size)
        while (sibling := self._nodes.pop((first ^ size, size), None)) is not None:
            tensors = _added(tensors, sibling) if first & size == 0 else _added(sibling, tensors)
            first &= ~size
            size *= 2
        self._nodes[first, size] = tensors

    def nodes(self) -> list[Node]:
        """The sums so far that have no sibling yet, in the order of their leaves."""
        return [(first, size, tensors) for (first, size), tensors in sorted(self._nodes.items())]

    def total(self) -> Tensors:
        """The sum of all leaves; the tree is empty afterwards."""
        nodes = [tensors for _, _, tensors in self.nodes()]
        self._nodes.clear()
        total = nodes.pop()
        while nodes:  # the last half of a tree whose leaves are no power of two is the smaller one
            total = _added(nodes.pop(), total)
        return total


def _added(left: Tensors, right: Tensors) -> Tensors:
    found: Tensors = []
    for a, b in zip(left, right, strict=True):
        found.append(b if a is None else a if b is None else a.add_(b))
    return found


def owned(tensors: Sequence[Tensor | None], foreign: Iterable[int] = ()) -> Tensors:
    """The tensors, each with memory of its own: those that share it with others, or lie in storages at the addresses
    `foreign`, are copied."""
    taken = set(foreign)
    found: Tensors = []
    for tensor in tensors:
        if tensor is None:
            found.append(None)
            continue
        place = tensor.untyped_storage().data_ptr()
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        fresh = place not in taken and whole and tensor.is_contiguous()
        taken.add(place)
        found.append(tensor if fresh else tensor.clone().contiguous())
    return found


def slice_of(number: int, microbatches: int, most_replicas: int) -> int:
    """The microbatch (from 0) that place `number` (from 0) of a minibatch's schedule computes.

    Replicas take places in turn; their places are mapped to neighbouring leaves of the tree, so that a replica adds up
    its own before it sends anything. Holds for powers of two; else place and microbatch are the same.
    """
    bits = most_replicas.bit_length() - 1
    if most_replicas != 1 << bits or microbatches % most_replicas:
        return number
    low = number % most_replicas
    mirrored = int(f"{low:0{bits}b}"[::-1], 2) if bits else 0
    return mirrored * (microbatches // most_replicas) + number // most_replicas
