"""Parameters that arrive while they are computed with: none is read before its partition is here."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import Settings, Table
from agileml.core.compute.arriving import ArrivingBlocks
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.parameters.layout import Layout
from tests.model.toy import DenseToy

TABLES = (Table("weights", 1, 500), Table("buffers", 1, 40, "float64"))


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 1), st.integers(0, 500), st.integers(0, 500))))
def test_a_range_is_here_once_it_was_waited_for_and_nothing_is_taken_for_nothing(
    partitions: int, waits: list[tuple[int, int, int]]
) -> None:
    layout = Layout(TABLES, partitions)
    truth = {t.name: np.arange(1, t.columns + 1, dtype=t.dtype) for t in TABLES}
    wholes = {t.name: np.zeros(t.columns, t.dtype) for t in TABLES}
    taken: list[int] = []

    def take(partition: int) -> list[np.ndarray]:
        taken.append(partition)
        return [truth[t.name][slice(*layout.range_of(i, partition))] for i, t in enumerate(TABLES)]

    arriving = ArrivingBlocks(layout, wholes, take)
    needed: set[int] = set()
    for table, a, b in waits:
        size = TABLES[table].columns
        start, stop = sorted((min(a, size), min(b, size)))
        arriving.wait(TABLES[table].name, start, stop)
        assert (wholes[TABLES[table].name][start:stop] == truth[TABLES[table].name][start:stop]).all()
        ranges = [layout.range_of(table, p) for p in range(partitions)]
        needed |= {p for p, (low, high) in enumerate(ranges) if max(low, start) < min(high, stop)}
        assert set(taken) == needed
    assert len(taken) == len(set(taken))


def test_an_application_that_does_not_wait_gets_everything() -> None:
    toy = DenseToy(Settings(slices=4, clocks_per_pass=2), 1)
    layout = Layout(tuple(toy.tables()), 3)
    work = UnitComputer(toy, layout, buffers=2)
    values = {table.name: toy.initial(table) + 1 for table in toy.tables()}
    work.load(range(4))
    parts = [layout.blocks(values, p) for p in range(3)]
    inputs = work.assemble_arriving(work.reads(5, [0b11]), parts.__getitem__)
    for name, table in values.items():
        assert (inputs.tables[name] == table).all()
    whole = work.assemble(work.reads(5, [0b11]), parts)
    assert work.compute(inputs, 0b11)[0].loss == work.compute(whole, 0b11)[0].loss


def test_clocks_in_a_row_have_memory_of_their_own() -> None:
    toy = DenseToy(Settings(slices=4, clocks_per_pass=2), 1)
    layout = Layout(tuple(toy.tables()), 3)
    here, there = UnitComputer(toy, layout), UnitComputer(toy, layout, buffers=2)
    for work, is_same in ((here, True), (there, False)):
        rooms = [work.room(1, 1, clock) for clock in (4, 5, 6)]
        assert all(room is not None for room in rooms)
        assert np.may_share_memory(rooms[0], rooms[1]) == is_same  # type: ignore[arg-type]
        assert np.may_share_memory(rooms[0], rooms[2])  # type: ignore[arg-type]
