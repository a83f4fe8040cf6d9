"""Applying a clock's total: what changes, what stays, and how the version before is read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import Table, Update
from agileml.core.parameters.apply import apply_total, initial_state, read_rows
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense, Layout, Sparse
from agileml.core.parameters.optimizer import optimizer
from tests.thorough import examples

TABLES = tuple(
    Table(f"{update.value} {'sparse' if sparse else 'dense'}", 9, 4, dtype, sparse=sparse, update=update)
    for update in (Update.GRADIENT, Update.STEP)
    for sparse, dtype in ((False, "float32"), (True, "float64"))
)
ROWS = st.sets(st.integers(0, 8), min_size=1).map(sorted)


def random_clock(seed: int, rows: list[int]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(updates, rows of the sparse tables) of whole tables."""
    rng = np.random.default_rng(seed)
    updates = {t.name: rng.normal(size=(len(rows) if t.sparse else 9, 4)).astype(t.dtype) for t in TABLES}
    return updates, {t.name: np.array(rows) for t in TABLES if t.sparse}


def initial() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {t.name: rng.normal(size=(9, 4)).astype(t.dtype) for t in TABLES}


@settings(deadline=None, derandomize=True, max_examples=examples(60))
@given(
    st.sampled_from(["sgd", "momentum", "adam"]), st.lists(ROWS, min_size=1, max_size=4), st.integers(1, 6)
)
def test_partitions_end_as_each_row_on_its_own_would(
    kind: str, clocks: list[list[int]], partitions: int
) -> None:
    algorithm = optimizer(kind, learning_rate=0.1)
    layout = Layout(TABLES, partitions)
    shares = [tuple(block.copy() for block in layout.blocks(initial(), p)) for p in range(partitions)]
    states = [initial_state(TABLES, blocks, algorithm) for blocks in shares]
    expected = {name: array.copy() for name, array in initial().items()}
    slots = {t.name: [np.zeros((9, 4), t.dtype) for _ in range(algorithm.slots)] for t in TABLES}
    for clock, rows in enumerate(clocks):
        updates, where = random_clock(clock, rows)
        for p, blocks in enumerate(layout.split_updates(updates, where)):
            applied = apply_total(
                Contribution(blocks), TABLES, shares[p], states[p], clock, algorithm, in_place=clock % 2 == 0
            )
            shares[p], states[p] = applied.blocks, applied.state
        for table in TABLES:
            found, touched = expected[table.name], rows if table.sparse else range(9)
            for row, update in zip(touched, updates[table.name], strict=True):
                if table.update is Update.STEP:
                    found[row] = found[row] + update
                else:
                    state = [array[row] for array in slots[table.name]]
                    algorithm.step(clock, found[row], update, state, found[row], state)
    for name, array in layout.whole(shares).items():
        assert array.tobytes() == expected[name].tobytes()


@settings(deadline=None, derandomize=True, max_examples=examples(60))
@given(ROWS, ROWS)
def test_the_version_before_stays_readable(changed: list[int], wanted: list[int]) -> None:
    algorithm = optimizer("momentum", learning_rate=0.1)
    layout = Layout(TABLES, 1)
    blocks = tuple(block.copy() for block in layout.blocks(initial(), 0))
    before = [block.copy() for block in blocks]
    (total,) = layout.split_updates(*random_clock(3, changed))
    state = initial_state(TABLES, blocks, algorithm)
    applied = apply_total(Contribution(total), TABLES, blocks, state, 0, algorithm, in_place=False)
    rows = np.array(wanted, np.int32)
    for table, old, given_block, new, undo in zip(
        TABLES, before, blocks, applied.blocks, applied.undo, strict=True
    ):
        if table.sparse:
            assert new is given_block
            assert undo is not None
            assert undo.rows.tolist() == changed
            assert np.array_equal(read_rows(new, rows, undo), old[rows])
            assert np.array_equal(read_rows(new, rows), new[rows])
            assert not np.array_equal(new, old)
        else:
            assert undo is None
            assert new is not given_block
            assert np.array_equal(given_block, old)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_table_that_nobody_updated_keeps_its_values_and_its_state(in_place: bool) -> None:
    algorithm = optimizer("momentum", learning_rate=0.1)
    table = Table("w", 2, 2)
    blocks, state = (np.ones(4, np.float32),), ([np.full(4, 7, np.float32)],)
    applied = apply_total(Contribution((None,)), (table,), blocks, state, 3, algorithm, in_place=in_place)
    assert applied.blocks[0].tolist() == [1, 1, 1, 1]
    assert applied.state[0][0].tolist() == [7, 7, 7, 7]
    assert applied.undo == (None,)
    dense, sparse = (
        Dense(np.ones(4, np.float32)),
        Sparse(np.array([0], np.int32), np.ones((1, 2), np.float32)),
    )
    with pytest.raises(AssertionError):
        apply_total(Contribution((sparse,)), (table,), blocks, state, 3, algorithm, in_place=in_place)
    rows = Table("w", 2, 2, sparse=True)
    with pytest.raises(AssertionError):
        apply_total(Contribution((dense,)), (rows,), blocks, state, 3, algorithm, in_place=in_place)
