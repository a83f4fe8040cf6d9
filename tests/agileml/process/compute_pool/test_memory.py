"""Memory that processes share: what one writes, another reads, at the places that the engine reads from."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import Table
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense, Layout, Sparse
from agileml.process.compute_pool.memory import Results, SharedTables, kept

LAYOUT = Layout((Table("w", 7, 9), Table("rows", 40, 3, "float64", sparse=True), Table("b", 1, 5)), 3)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.sets(st.integers(0, 39)), st.booleans())
def test_pulled_blocks_become_whole_tables_for_every_process(chosen: set[int], in_place: bool) -> None:
    rng = np.random.default_rng(len(chosen))
    values = {
        table.name: rng.random((table.rows, table.columns)).astype(table.dtype) for table in LAYOUT.tables
    }
    rows = {"rows": np.array(sorted(chosen), np.int64)}
    local = LAYOUT.rows_by_partition(rows)
    fd = os.memfd_create("test")
    here, there = SharedTables(LAYOUT, fd), SharedTables(LAYOUT, fd)
    os.close(fd)
    pulled = []
    for partition in range(3):
        blocks = []
        for index, block in enumerate(LAYOUT.blocks(values, partition)):
            wanted = local[partition][index]
            place = here.room(index, partition)
            if place is not None and in_place:  # as rendezvous receives it
                place[:] = block
                blocks.append(place)
            else:
                blocks.append(block if wanted is None else block[wanted])
        pulled.append(blocks)
    here.fill(rows, pulled)
    tables, found = there.tables((0, len(chosen), 0))
    assert np.array_equal(found["rows"], rows["rows"])
    assert np.array_equal(tables["rows"], values["rows"][rows["rows"]])
    assert np.array_equal(tables["w"], values["w"]) and np.array_equal(tables["b"], values["b"])
    assert not any(table.flags.writeable for table in tables.values())


def test_sums_are_read_where_they_were_written_and_outlive_the_next_order_if_kept() -> None:
    fd = os.memfd_create("test")
    process, machine = Results(fd), Results(fd)
    big = np.arange(100_000, dtype=np.float32)
    sparse = Sparse(np.array([3, 9], np.int32), np.ones((2, 4)))
    first = process.write_sum(Contribution((Dense(big), None, sparse), 2.5, 7, (4.0, 2.0)))
    second = process.write_sum(Contribution((None, Dense(-big), None)))
    found = machine.read_sum(first)
    assert (found.loss, found.examples, found.metrics, found.blocks[1]) == (2.5, 7, (4.0, 2.0), None)
    safe = kept(found)
    assert (safe.loss, safe.examples, safe.metrics) == (2.5, 7, (4.0, 2.0))
    assert np.array_equal(machine.read_sum(second).blocks[1].values, -big)  # type: ignore[union-attr]
    process.clear()
    process.write(np.zeros(300_000, np.float32))
    dense, rows = safe.blocks[0], safe.blocks[2]
    assert isinstance(dense, Dense) and np.array_equal(dense.values, big)
    assert isinstance(rows, Sparse) and rows.rows.tolist() == [3, 9] and rows.values.shape == (2, 4)
    assert np.array_equal(machine.read(process.write(np.empty((0, 3)))), np.empty((0, 3)))
    os.close(fd)
