"""LAMB: the formulas of the paper, and the same bits however layers are cut into partitions."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import Range, Table, Update
from agileml.core.parameters.apply import apply_total, initial_state, partition_optimizers
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.gradient_norm import SquareTree, norm
from agileml.core.parameters.groups import GroupedOptimizer
from agileml.core.parameters.layer_norms import LayerTrees, direction_sums, with_norms
from agileml.core.parameters.layout import Layout
from agileml.core.parameters.loss_scale import clock_sum
from agileml.core.parameters.optimizer import optimizer

CLOCKS = 6
RATE, DECAY, EPSILON, BETAS = 0.03, 0.1, 1e-6, (0.8, 0.95)
LIMIT = 2.0


def rules(limit: float | None, names: list[str]) -> GroupedOptimizer:
    """With another decay for the last layer."""
    shared: dict[str, Any] = {"learning_rate": RATE, "beta1": BETAS[0], "beta2": BETAS[1], "clip_norm": limit}
    default = optimizer("lamb", weight_decay=DECAY, **shared)
    return GroupedOptimizer(default, {names[-1]: optimizer("lamb", weight_decay=0.0, **shared)})


def table_of(sizes: list[int], dtype: str) -> Table:
    ends = np.cumsum(sizes).tolist()
    ranges = tuple(Range(f"layer{n}", end) for n, end in enumerate(ends))
    return Table("parameters", 1, ends[-1], dtype, ranges=ranges)


def gradients_of(table: Table) -> list[np.ndarray]:
    """The second layer gets none in clock 1, where nobody reaches it."""
    rng = np.random.default_rng(4)
    found = [rng.normal(size=table.columns).astype(table.dtype) for _ in range(CLOCKS)]
    if len(table.ranges) > 1:
        found[1][table.ranges[0].stop : table.ranges[1].stop] = -0.0
    return found


def trained(table: Table, start: np.ndarray, partitions: int, limit: float | None) -> np.ndarray:
    """As owners of partitions do it: each knows its part, and what the others tell."""
    layout = Layout((table, Table("means", 1, 40, update=Update.STEP)), partitions)
    rule = rules(limit, [part.name for part in table.ranges])
    values = {"parameters": start.reshape(1, -1).copy(), "means": np.zeros((1, 40), np.float32)}
    parts = range(partitions)
    blocks = [layout.blocks(values, p) for p in parts]
    state: list[Any] = [initial_state(layout.tables, blocks[p], rule) for p in parts]
    own = [partition_optimizers(rule, layout, p) for p in parts]
    trees, tree = LayerTrees(layout), SquareTree(layout)
    for clock, gradient in enumerate(gradients_of(table)):
        cut = layout.split_updates({"parameters": gradient.reshape(1, -1)}, {})
        totals = [Contribution(some) for some in cut]
        length = norm(tree.sums(p, totals[p]) for p in parts)
        found = [
            clock_sum(totals[p], layout.tables, blocks[p], rule=None, limit=limit, norm=length) for p in parts
        ]
        sums = [direction_sums(trees, p, own[p], clock, blocks[p], state[p], found[p]) for p in parts]
        for p in parts:
            heard = [sums[partner] for partner in sorted(trees.partners[p])]
            each = with_norms(found[p], trees, heard)
            applied = apply_total(
                each.total, layout.tables, blocks[p], state[p], clock, own[p], in_place=True, terms=each.terms
            )
            blocks[p], state[p] = applied.blocks, applied.state
    return layout.whole(blocks)["parameters"].reshape(-1)


def by_the_paper(table: Table, start: np.ndarray, limit: float | None) -> np.ndarray:
    """Algorithm 2 of You et al. (2020), in float64, layer by layer, with phi the identity."""
    w = start.astype(np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for step, gradient in enumerate(gradients_of(table), 1):
        g = gradient.astype(np.float64)
        if limit is not None:
            g = g * min(1.0, limit / (np.linalg.norm(g) + 1e-6))
        first = 0
        for part in table.ranges:
            at = slice(first, part.stop)
            first = part.stop
            if not g[at].any():
                continue
            m[at] = BETAS[0] * m[at] + (1 - BETAS[0]) * g[at]
            v[at] = BETAS[1] * v[at] + (1 - BETAS[1]) * g[at] ** 2
            r = (m[at] / (1 - BETAS[0] ** step)) / (np.sqrt(v[at] / (1 - BETAS[1] ** step)) + EPSILON)
            direction = r + (0.0 if part is table.ranges[-1] else DECAY) * w[at]
            sizes = np.linalg.norm(w[at]), np.linalg.norm(direction)
            ratio = sizes[0] / sizes[1] if min(sizes) > 0 else 1.0
            w[at] -= RATE * ratio * direction
    return w


sizes = st.lists(st.integers(1, 12).map(lambda groups: 16 * groups), min_size=2, max_size=5)


@settings(max_examples=30, deadline=None)
@given(sizes, st.integers(1, 7), st.sampled_from([None, LIMIT]), st.booleans())
def test_it_is_the_papers_and_partitions_change_no_bit(
    sizes: list[int], partitions: int, limit: float | None, first_is_zero: bool
) -> None:
    exact = table_of(sizes, "float64")
    start = np.random.default_rng(1).normal(size=exact.columns)
    if first_is_zero:
        start[: sizes[0]] = 0.0  # no norm to compare with: the ratio is 1
    whole = trained(exact, start, 1, limit)
    np.testing.assert_allclose(whole, by_the_paper(exact, start, limit), rtol=1e-11, atol=1e-13)
    short, from_here = table_of(sizes, "float32"), start.astype(np.float32)
    assert np.array_equal(trained(short, from_here, partitions, limit), trained(short, from_here, 1, limit))


def test_a_partition_waits_for_those_with_parts_of_its_layers() -> None:
    trees = LayerTrees(Layout((table_of([32, 64, 32], "float32"),), 4))
    assert trees.partners == ({0}, {1, 2}, {1, 2}, {3})
    assert [layer.name for layer in trees.layers] == ["layer0", "layer1", "layer2"]


def test_a_table_without_ranges_is_one_layer() -> None:
    trees = LayerTrees(Layout((Table("w", 4, 10), Table("rows", 8, 2, sparse=True)), 2))
    assert [(layer.name, layer.stop) for layer in trees.layers] == [("w", 40)]
