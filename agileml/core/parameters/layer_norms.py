"""Norms of whole layers from square sums of their parts, with the same bits however they are divided: for LAMB.

The leaves of a layer's tree are its groups of 16 elements. A partition adds up the largest whole subtrees of its own
leaves, and the rest is added where the sums of all partitions with a part of the layer meet (as in `gradient_norm`,
where one tree is over all tables).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from agileml.application import Array, Table, Update
from agileml.core.parameters.apply import State
from agileml.core.parameters.gradient_norm import SquareSums, norm, subtrees
from agileml.core.parameters.groups import LayerwiseBlock
from agileml.core.parameters.layout import ALIGNMENT, Dense, Layout
from agileml.core.parameters.loss_scale import ClockSum
from agileml.core.parameters.optimizer import Optimizer

# The number of a subtree of layer n: its number in the layer's tree, and above these bits 2 n for the parameters and
# 2 n + 1 for the direction.
SHIFT = 40


@dataclass(frozen=True)
class Layer:
    """A parameter: elements [start, stop) of a dense table."""

    name: str
    table: int
    start: int
    stop: int

    @property
    def root(self) -> int:
        """The number of leaf 0 in its tree."""
        return 1 << max(0, -(-(self.stop - self.start) // ALIGNMENT) - 1).bit_length()


@dataclass(frozen=True)
class LayerTrees:
    """The trees over the layers of a layout."""

    layout: Layout

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All of them, in the order of the tables."""
        found: list[Layer] = []
        for index, table in enumerate(self.layout.tables):
            if table.update is Update.GRADIENT and not table.sparse:
                start = 0
                for name, stop in ranges_of(table):
                    found.append(Layer(name, index, start, stop))
                    start = stop
        return tuple(found)

    def sums(self, partition: int, leaves: Mapping[str, tuple[Array, Array]]) -> SquareSums:
        """The sums of a partition. leaves: by layer, those of its parameters and of its direction that lie here."""
        found: list[tuple[int, float]] = []
        for number, layer in enumerate(self.layers):
            if layer.name not in leaves:
                continue
            start, _ = self.layout.range_of(layer.table, partition)
            first = layer.root + (max(start, layer.start) - layer.start) // ALIGNMENT
            for which, sums in enumerate(leaves[layer.name]):
                above = 2 * number + which << SHIFT
                numbers = np.arange(first, first + sums.size)
                found += [
                    (above | node, value) for node, value in subtrees(first, first + sums.size, numbers, sums)
                ]
        return tuple(found)

    def norms(self, parts: Iterable[SquareSums]) -> dict[str, tuple[float, float]]:
        """By layer, the norms of its parameters and of its direction, from the sums of the partitions that have it."""
        by_tree: dict[int, SquareSums] = {}
        for part in parts:
            for number, value in part:
                tree, node = number >> SHIFT, number & (1 << SHIFT) - 1
                by_tree[tree] = (*by_tree.get(tree, ()), (node, value))
        return {
            self.layers[tree // 2].name: (norm([by_tree[tree]]), norm([by_tree[tree + 1]]))
            for tree in by_tree
            if tree % 2 == 0
        }

    @cached_property
    def partners(self) -> tuple[frozenset[int], ...]:
        """For each partition those that have parts of the same layers, itself included."""
        found = [{partition} for partition in range(self.layout.partitions)]
        for layer in self.layers:
            holding = [p for p in range(self.layout.partitions) if self._has(p, layer)]
            for partition in holding:
                found[partition].update(holding)
        return tuple(map(frozenset, found))

    def _has(self, partition: int, layer: Layer) -> bool:
        start, stop = self.layout.range_of(layer.table, partition)
        return max(start, layer.start) < min(stop, layer.stop)


def ranges_of(table: Table) -> list[tuple[str, int]]:
    """(name, end) of a table's layers: its ranges, or all of it."""
    return [(part.name, part.stop) for part in table.ranges] or [(table.name, table.rows * table.columns)]


def direction_sums(
    trees: LayerTrees,
    partition: int,
    rules: Sequence[Optimizer],
    clock: int,
    blocks: Sequence[Array],
    state: Sequence[State],
    found: ClockSum,
) -> SquareSums:
    """The sums of a partition's parts of the layers, for the step that it is about to take."""
    leaves: dict[str, tuple[Array, Array]] = {}
    parts = zip(trees.layout.tables, rules, blocks, state, found.total.blocks, strict=True)
    for table, rule, block, slots, update in parts:
        if table.update is Update.GRADIENT and isinstance(update, Dense) and isinstance(rule, LayerwiseBlock):
            leaves |= rule.squares(clock, block, update.values, slots, found.terms)
    return trees.sums(partition, leaves)


def with_norms(found: ClockSum, trees: LayerTrees, parts: Iterable[SquareSums]) -> ClockSum:
    """The sum of a clock with the norms of the layers, from the sums of the partitions."""
    return replace(found, terms=replace(found.terms, norms=trees.norms(parts)))
