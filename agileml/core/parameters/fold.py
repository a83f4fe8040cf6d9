"""Adding up contributions along one binary tree over the units of a clock.

Floating point addition is not associative, so the units fix the order of adding, not the workers or the order of
arrival. The leaves of the tree are the units 0 .. U-1 (U a power of two), each inner node is the sum of its left and
its right child, and missing leaves are left out. A worker sends the sums of the aligned subtrees that it holds, a
shard merges siblings as they arrive, and the sequential run follows the same tree: every assignment of units gives the
same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numba
import numpy as np

from agileml.core.parameters.layout import Block, Dense, OnDevice, Sparse, read_only
from straggler.coverage import Units, show, span


@dataclass(frozen=True)
class Contribution:
    """The summed updates of a bundle for one partition: a block per table (None: nothing), and its loss.

    `metrics`: for each metric of the job its sum and its weight; empty where none was measured.
    """

    blocks: tuple[Block | None, ...]
    loss: float = 0.0
    examples: int = 0
    metrics: tuple[float, ...] = ()


@numba.njit(cache=True, nogil=True)
def _merge_rows(rows_a, values_a, rows_b, values_b, rows, values):  # type: ignore[no-untyped-def]
    """Union of two ascending row lists; rows in both are added a + b. Returns the number of rows."""
    a = b = n = 0
    columns = values.shape[1]  # element by element: slicing a row costs more than copying it
    while a < rows_a.size or b < rows_b.size:
        if b == rows_b.size or (a < rows_a.size and rows_a[a] < rows_b[b]):
            rows[n] = rows_a[a]
            for column in range(columns):
                values[n, column] = values_a[a, column]
            a += 1
        elif a == rows_a.size or rows_b[b] < rows_a[a]:
            rows[n] = rows_b[b]
            for column in range(columns):
                values[n, column] = values_b[b, column]
            b += 1
        else:
            rows[n] = rows_a[a]
            for column in range(columns):
                values[n, column] = values_a[a, column] + values_b[b, column]
            a += 1
            b += 1
        n += 1
    return n


def _merge_blocks(left: Block, right: Block, own_left: bool, own_right: bool) -> Block:
    if isinstance(left, OnDevice):
        assert isinstance(right, OnDevice)
        if not own_left and not own_right:
            return OnDevice(left.values.plus(right.values))
        kept, added = (left, right) if own_left else (right, left)
        kept.values.add(added.values)
        return kept
    if isinstance(left, Dense):
        assert isinstance(right, Dense)
        # Adding into an array in the cache takes less than half the time, and no second array.
        into = left.values if own_left else right.values if own_right else None
        return Dense(np.add(left.values, right.values, out=into))
    assert isinstance(right, Sparse)
    most = left.rows.size + right.rows.size
    rows = np.empty(most, left.rows.dtype)
    values = np.empty((most, left.values.shape[1]), left.values.dtype)
    # Read-only views, as in optimizer.take_step: numba compiles one kernel for all arrays.
    pieces = (read_only(piece) for piece in (left.rows, left.values, right.rows, right.values))
    n = _merge_rows(*pieces, rows, values)
    return Sparse(rows[:n], values[:n])


@dataclass
class _Node:
    total: Contribution
    owned: tuple[bool, ...]  # per block: only this sum has the array, so it may be overwritten


def _shared(contribution: Contribution) -> _Node:
    return _Node(contribution, (False,) * len(contribution.blocks))


def _given(contribution: Contribution) -> _Node:
    """A contribution whose arrays may be overwritten."""
    return _Node(
        contribution, tuple(block is not None and _may_write(block) for block in contribution.blocks)
    )


def _may_write(block: Block) -> bool:
    return isinstance(block, OnDevice) or bool(block.values.flags.writeable)


def _added(left: _Node, right: _Node) -> _Node:
    """left + right, added into arrays that one of them owns, where there are such."""
    blocks: list[Block | None] = []
    owned = []
    for a, b, own_a, own_b in zip(
        left.total.blocks, right.total.blocks, left.owned, right.owned, strict=True
    ):
        if a is None or b is None:  # one side alone: its array keeps its owner
            blocks.append(b if a is None else a)
            owned.append(own_b if a is None else own_a)
        else:
            blocks.append(_merge_blocks(a, b, own_a, own_b))
            owned.append(True)
    total = Contribution(
        tuple(blocks),
        left.total.loss + right.total.loss,
        left.total.examples + right.total.examples,
        added_metrics(left.total.metrics, right.total.metrics),
    )
    return _Node(total, tuple(owned))


def added_metrics(left: tuple[float, ...], right: tuple[float, ...]) -> tuple[float, ...]:
    """The sums of two bundles' metrics, of which either may have measured none."""
    if not left or not right:
        return left or right
    return tuple(a + b for a, b in zip(left, right, strict=True))


@dataclass
class Fold:
    """Contributions of one clock to one partition, merged as they arrive.

    Deterministic: bundles are aligned subtrees and siblings merge. Otherwise everything goes into one sum in the
    order of arrival, and a bundle may be any set of units.
    """

    deterministic: bool
    counted: Units = 0
    bundles: list[Units] = field(default_factory=list)  # as pushed; redone bundles keep their boundaries
    _nodes: dict[tuple[int, int], _Node] = field(default_factory=dict)  # (first unit, size) -> sum

    def add(self, bundle: Units, contribution: Contribution, *, given: bool = False) -> None:
        """Count a bundle. The caller has checked that none of its units is counted yet.

        `given`: the contribution's arrays may be overwritten.
        """
        assert bundle and not bundle & self.counted, (show(bundle), show(self.counted))
        self.counted |= bundle
        self.bundles.append(bundle)
        node = _given(contribution) if given else _shared(contribution)
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

    def sums(self) -> list[tuple[Units, Contribution]]:
        """(units, sum) of each sum so far, ascending: one of all, or of each aligned subtree where order counts."""
        if not self.deterministic:
            return [(self.counted, node.total) for node in self._nodes.values()]
        return [
            (span(first, first + size), self._nodes[first, size].total) for first, size in sorted(self._nodes)
        ]

    def copied(self) -> FoldCopy:
        """A copy of all pending sums, for another server."""
        # From here on the copy refers to the arrays too.
        for node in self._nodes.values():
            node.owned = (False,) * len(node.owned)
        keys = sorted(self._nodes)
        return FoldCopy(
            tuple(sorted(self.bundles)), tuple(keys), tuple(self._nodes[key].total for key in keys)
        )

    @classmethod
    def restored(cls, copy: FoldCopy, *, deterministic: bool) -> Fold:
        """The fold that `copied` copied."""
        fold = cls(deterministic)
        fold.bundles = list(copy.bundles)
        for bundle in copy.bundles:
            fold.counted |= bundle
        fold._nodes = {key: _shared(total) for key, total in zip(copy.keys, copy.totals, strict=True)}
        return fold


@dataclass(frozen=True)
class FoldCopy:
    """A fold on its way to another server."""

    bundles: tuple[Units, ...]
    keys: tuple[tuple[int, int], ...]
    totals: tuple[Contribution, ...]


class TreeSum:
    """The sum of the first leaves of an aligned subtree, added in their order along the same tree.

    Holds at most one partial sum per level, and may overwrite the contributions' arrays.
    """

    def __init__(self) -> None:
        self._stack: list[tuple[int, _Node]] = []

    def add(self, leaf: Contribution) -> None:
        """Add the next leaf."""
        size, node = 1, _given(leaf)
        while self._stack and self._stack[-1][0] == size:
            node = _added(self._stack.pop()[1], node)
            size *= 2
        self._stack.append((size, node))

    def sums(self) -> list[tuple[int, Contribution]]:
        """(leaves, sum) of each aligned subtree of the leaves added so far, in their order."""
        return [(size, node.total) for size, node in self._stack]


def tree_sum(leaves: Iterable[Contribution]) -> Contribution:
    """Sum the contributions of all units of one aligned subtree, given in their order. Their arrays may be
    overwritten."""
    tree = TreeSum()
    for leaf in leaves:
        tree.add(leaf)
    sums = tree.sums()
    assert len(sums) == 1, [size for size, _ in sums]
    return sums[0][1]


def running_sum(leaves: Iterable[Contribution]) -> Contribution:
    """Sum contributions one after the other, for sums whose order need not be repeatable. Their arrays may be
    overwritten."""
    total: _Node | None = None
    for leaf in leaves:
        total = _given(leaf) if total is None else _added(total, _given(leaf))
    assert total is not None
    return total.total
