"""How tables are cut into partitions, and how pieces find back together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import Table, Unit
from agileml.core.compute.streaming import can_stream
from agileml.core.parameters.layout import ALIGNMENT, Dense, Layout, Sparse, partitions_for
from tests.thorough import examples

EXAMPLES = settings(deadline=None, derandomize=True, max_examples=examples(100))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    tables = tuple(
        Table(
            f"t{index}",
            draw(st.integers(1, 40)),
            draw(st.integers(1, 20)),
            draw(st.sampled_from(["float32", "float64"])),
            sparse=draw(st.booleans()),
        )
        for index in range(draw(st.integers(1, 3)))
    )
    return Layout(tables, draw(st.integers(1, 12)))


def random_tables(layout: Layout, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.normal(size=(t.rows, t.columns)).astype(t.dtype) for t in layout.tables}


@EXAMPLES
@given(layouts(), st.integers(0, 99))
def test_blocks_of_all_partitions_are_the_tables(layout: Layout, seed: int) -> None:
    values = random_tables(layout, seed)
    back = layout.whole([layout.blocks(values, p) for p in range(layout.partitions)])
    assert all(np.array_equal(back[name], values[name]) for name in values)
    for index, table in enumerate(layout.tables):
        cuts = layout.cuts(index)
        assert cuts == sorted(cuts)
        assert cuts[-1] == (table.rows if table.sparse else table.rows * table.columns)
        if not table.sparse:
            assert all(cut % ALIGNMENT == 0 for cut in cuts[:-1] if cut < cuts[-1])


@EXAMPLES
@given(layouts(), st.data())
def test_rows_and_updates_go_to_the_partition_that_has_them(layout: Layout, data: st.DataObject) -> None:
    values = random_tables(layout, 1)
    rows = {
        t.name: np.array(sorted(data.draw(st.sets(st.integers(0, t.rows - 1)))), np.int64)
        for t in layout.tables
        if t.sparse
    }
    updates = {name: values[name][rows[name]] if name in rows else values[name] for name in values}
    wanted = layout.rows_by_partition(rows)
    split = layout.split_updates(updates, rows)
    rebuilt = {name: np.full_like(array, np.nan) for name, array in values.items()}
    for p in range(layout.partitions):
        for index, table in enumerate(layout.tables):
            start, stop = layout.range_of(index, p)
            block = split[p][index]
            local = wanted[p][index]
            if table.sparse:
                assert local is not None
                expected = [r - start for r in rows[table.name] if start <= r < stop]
                assert local.tolist() == expected
                assert (block is None) == (not expected)
                if block is not None:
                    assert isinstance(block, Sparse)
                    assert block.rows.tolist() == expected
                    rebuilt[table.name][block.rows + start] = block.values
            else:
                assert local is None
                assert (block is None) == (start == stop)
                if block is not None:
                    assert isinstance(block, Dense)
                    rebuilt[table.name].reshape(-1)[start:stop] = block.values
    for name, array in rebuilt.items():
        at = rows.get(name, slice(None))
        assert np.array_equal(array[at], updates[name])


@EXAMPLES
@given(st.integers(0, 200), st.integers(1, 20), st.integers(0, 3), st.integers(0, 5))
def test_a_pass_has_every_item_in_exactly_one_unit(
    items: int, clocks_per_pass: int, log_parts: int, first_pass: int
) -> None:
    parts = 1 << log_parts
    ranges = [
        Unit(first_pass * clocks_per_pass + clock, 0, part, parts).range_of(items, clocks_per_pass)
        for clock in range(clocks_per_pass)
        for part in range(parts)
    ]
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(items))
    sizes = {stop - start for start, stop in ranges}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("machines", "megabytes", "partitions"),
    [(8, 0, 8), (12, 0, 12), (8, 4, 16), (8, 64, 32), (2, 64, 8), (1, 1, 4)],
)
def test_partitions_follow_the_machines_and_the_size(machines: int, megabytes: int, partitions: int) -> None:
    tables = [Table("small", 10, 4), Table("large", (megabytes << 18) or 1, 1)]
    assert partitions_for(tables, machines) == partitions


def test_gathered_tables_are_in_partition_0_alone() -> None:
    tables = (Table("weights", 1, 500), Table("buffers", 1, 40), Table("counters", 1, 3, "float64"))
    layout = Layout(tables, 4, gathers=True)
    assert layout.cuts(0) == Layout(tables, 4).cuts(0)
    assert layout.cuts(1) == [0, 40, 40, 40, 40]
    values = {t.name: np.arange(t.columns, dtype=t.dtype).reshape(1, -1) for t in tables}
    parts = [layout.blocks(values, partition) for partition in range(4)]
    assert all((layout.whole(parts)[name] == table).all() for name, table in values.items())
    assert can_stream(layout) and not can_stream(Layout(tables, 4))
    assert not can_stream(Layout((Table("rows", 5, 2, sparse=True), *tables), 4, gathers=True))


@pytest.mark.parametrize(
    ("machines", "megabytes", "partitions"), [(2, 1, 4), (2, 8, 8), (2, 16, 16), (2, 100, 32), (8, 100, 96)]
)
def test_where_clocks_overlap_there_are_more(machines: int, megabytes: int, partitions: int) -> None:
    tables = [Table("large", megabytes << 18, 1)]
    assert partitions_for(tables, machines, overlaps=True) == partitions
