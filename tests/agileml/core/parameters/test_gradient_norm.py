"""The norm of a gradient: the same bits for any partitions, and the number that numpy and torch find."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import Table, Update
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.gradient_norm import SquareSums, SquareTree, clip_scale, norm
from agileml.core.parameters.layout import Layout
from tests.thorough import examples

tables = st.lists(
    st.builds(
        lambda rows, columns, sparse, dtype, update: (rows, columns, sparse, dtype, update),
        st.integers(1, 90),
        st.integers(1, 9),
        st.booleans(),
        st.sampled_from(["float32", "float64"]),
        st.sampled_from([Update.GRADIENT, Update.GRADIENT, Update.STEP]),
    ),
    min_size=1,
    max_size=3,
)


def parts_of(layout: Layout, seed: int) -> tuple[list[SquareSums], float]:
    """The sums of every partition for a random gradient, and its norm in extended precision."""
    rng = np.random.default_rng(seed)
    updates, rows, squares = {}, {}, []
    for table in layout.tables:
        kept = np.flatnonzero(rng.random(table.rows) < rng.random()) if table.sparse else range(table.rows)
        values = rng.normal(size=(len(kept), table.columns)) * 10.0 ** rng.integers(-3, 4)
        if table.sparse:
            rows[table.name] = np.asarray(kept)
        if len(kept) and rng.random() < 0.9:
            updates[table.name] = values.astype(table.dtype)
            if table.update is Update.GRADIENT:
                squares += [float(value) ** 2 for value in updates[table.name].reshape(-1)]
    split = layout.split_updates(updates, {name: rows[name] for name in rows})
    tree = SquareTree(layout)
    parts = [tree.sums(partition, Contribution(blocks)) for partition, blocks in enumerate(split)]
    return parts, math.sqrt(math.fsum(squares))


@settings(deadline=None, max_examples=examples(80))
@given(tables, st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(0, 2**32))
def test_partitions_change_no_bit_of_it(shapes: list[tuple[object, ...]], cuts: list[int], seed: int) -> None:
    made = tuple(
        Table(f"t{number}", rows, columns, dtype, sparse=sparse, update=update)  # type: ignore[arg-type]
        for number, (rows, columns, sparse, dtype, update) in enumerate(shapes)
    )
    whole, exact = parts_of(Layout(made, 1), seed)
    assert norm(whole) == pytest.approx(exact, rel=1e-14)
    for partitions in cuts:
        parts, _ = parts_of(Layout(made, partitions), seed)
        assert norm(parts) == norm(whole)
        leaves = max(2, sum(table.rows * table.columns for table in made))
        for part in parts:
            assert len(part) <= 2 * len(made) * math.ceil(math.log2(leaves) + 1), "a message of many sums"


def test_the_scale_is_torchs() -> None:
    for size in (0.2, 1.0, 3.0, 1e6):
        gradient = torch.full((7,), size / math.sqrt(7), dtype=torch.float64)
        parameter = torch.zeros(7, dtype=torch.float64, requires_grad=True)
        parameter.grad = gradient.clone()
        found = torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        torch.testing.assert_close(
            parameter.grad, gradient * clip_scale(float(found), 1.0), rtol=1e-12, atol=0
        )


def test_a_gradient_that_is_not_finite_stays_so() -> None:
    """Training has diverged, and the cut that has the parameters says so."""
    layout = Layout((Table("t", 1, 40),), 2)
    for bad in (np.nan, np.inf):
        values = np.ones((1, 40), np.float32)
        values[0, 3] = bad
        split = layout.split_updates({"t": values}, {})
        tree = SquareTree(layout)
        found = norm(tree.sums(p, Contribution(blocks)) for p, blocks in enumerate(split))
        assert not math.isfinite(found)
        with np.errstate(invalid="ignore"):
            assert not np.isfinite(values * clip_scale(found, 1.0)).all()
