"""Adding up contributions: always along one binary tree over the units of a clock.

Floats do not add associatively, so the order is fixed by the units, not by who computed them or what arrived
first: the leaves of a binary tree are the units 0 .. U-1 (U a power of two), a node is the sum of its left and its
right child, and a missing leaf is left out. A worker sends the sums of the aligned subtrees it holds, a shard goes
on merging siblings as they arrive, and the sequential run walks the same tree: the same bits for every assignment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np

from agileml.core.layout import Block, Dense, Sparse
from straggler.coverage import Units, show


@dataclass(frozen=True)
class Contribution:
    """The summed updates of a bundle for one partition: a block per table (None: nothing), and its loss."""

    blocks: tuple[Block | None, ...]
    loss: float = 0.0
    examples: int = 0


@numba.njit(cache=True, nogil=True)
def _merge_rows(rows_a, values_a, rows_b, values_b, rows, values):  # type: ignore[no-untyped-def]
    """Union of two ascending row lists; rows in both are added a + b. Returns the number of rows."""
    a = b = n = 0
    while a < rows_a.size or b < rows_b.size:
        if b == rows_b.size or (a < rows_a.size and rows_a[a] < rows_b[b]):
            rows[n] = rows_a[a]
            values[n] = values_a[a]
            a += 1
        elif a == rows_a.size or rows_b[b] < rows_a[a]:
            rows[n] = rows_b[b]
            values[n] = values_b[b]
            b += 1
        else:
            rows[n] = rows_a[a]
            for column in range(values.shape[1]):
                values[n, column] = values_a[a, column] + values_b[b, column]
            a += 1
            b += 1
        n += 1
    return n


def _merge_blocks(left: Block | None, right: Block | None, into_left: bool) -> Block | None:
    if left is None or right is None:
        return right if left is None else left
    if isinstance(left, Dense):
        assert isinstance(right, Dense)
        return Dense(np.add(left.values, right.values, out=left.values if into_left else None))
    assert isinstance(right, Sparse)
    most = left.rows.size + right.rows.size
    rows = np.empty(most, np.int32)
    values = np.empty((most, left.values.shape[1]), left.values.dtype)
    n = _merge_rows(left.rows, left.values, right.rows, right.values, rows, values)
    return Sparse(rows[:n], values[:n])


def merge(left: Contribution, right: Contribution, *, into_left: bool = False) -> Contribution:
    """left + right. With `into_left` the arrays of `left` may be overwritten."""
    return Contribution(
        tuple(_merge_blocks(a, b, into_left) for a, b in zip(left.blocks, right.blocks, strict=True)),
        left.loss + right.loss,
        left.examples + right.examples,
    )


@dataclass
class _Node:
    total: Contribution
    owned: bool  # its arrays are nobody else's: they may be overwritten


@dataclass
class Fold:
    """Contributions of one clock to one partition, merged as they arrive.

    Deterministic: bundles are aligned subtrees and siblings merge. Otherwise everything goes into one sum in the
    order of arrival, and a bundle may be any set of units.
    """

    deterministic: bool
    counted: Units = 0
    bundles: list[Units] = field(
        default_factory=list
    )  # as they were pushed: boundaries that redone work keeps
    _nodes: dict[tuple[int, int], _Node] = field(default_factory=dict)  # (first unit, size) -> sum

    def add(self, bundle: Units, contribution: Contribution) -> None:
        """Count a bundle. The caller has judged it: none of its units is counted yet."""
        assert bundle and not bundle & self.counted, (show(bundle), show(self.counted))
        self.counted |= bundle
        self.bundles.append(bundle)
        node = _Node(contribution, owned=False)
        if not self.deterministic:
            key = (0, 0)
            before = self._nodes.get(key)
            self._nodes[key] = _added(before, node) if before else node
            return
        first = (bundle & -bundle).bit_length() - 1
        size = bundle.bit_count()
        assert size & (size - 1) == 0 and first % size == 0 and bundle >> first == (1 << size) - 1, show(
            bundle
        )
        while (sibling := self._nodes.pop((first ^ size, size), None)) is not None:
            node = _added(node, sibling) if first & size == 0 else _added(sibling, node)
            first &= ~size
            size *= 2
        self._nodes[(first, size)] = node

    def total(self) -> Contribution:
        """The sum of a complete clock."""
        assert len(self._nodes) == 1, sorted(self._nodes)
        return next(iter(self._nodes.values())).total

    def copied(self) -> FoldCopy:
        """Everything that is pending, to be moved to another server."""
        # From here on the arrays have two holders.
        for node in self._nodes.values():
            node.owned = False
        keys = sorted(self._nodes)
        return FoldCopy(
            tuple(sorted(self.bundles)), tuple(keys), tuple(self._nodes[key].total for key in keys)
        )

    @classmethod
    def restored(cls, copy: FoldCopy, *, deterministic: bool) -> Fold:
        """The fold that `copied` took."""
        fold = cls(deterministic)
        fold.bundles = list(copy.bundles)
        for bundle in copy.bundles:
            fold.counted |= bundle
        fold._nodes = {
            key: _Node(total, owned=False) for key, total in zip(copy.keys, copy.totals, strict=True)
        }
        return fold


@dataclass(frozen=True)
class FoldCopy:
    """A fold on its way to another server."""

    bundles: tuple[Units, ...]
    keys: tuple[tuple[int, int], ...]
    totals: tuple[Contribution, ...]


def _added(left: _Node, right: _Node) -> _Node:
    return _Node(merge(left.total, right.total, into_left=left.owned), owned=True)


def tree_sum(leaves: Iterable[tuple[int, Any]], merge_two: Any) -> Any:
    """Sum (unit, value) leaves of one aligned subtree, ascending and complete, along the same tree."""
    stack: list[tuple[int, Any]] = []
    for _unit, value in leaves:
        size = 1
        while stack and stack[-1][0] == size:
            value = merge_two(stack.pop()[1], value)
            size *= 2
        stack.append((size, value))
    assert len(stack) == 1, [size for size, _ in stack]
    return stack[0][1]
