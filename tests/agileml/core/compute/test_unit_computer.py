"""Computing units: reads, assembly, sums of bundles, and blame for user code."""

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import Application, InputError, Settings, Table, Unit, Update, Updates
from agileml.core.compute.contract import ContractError, checked_tables, initial_values
from agileml.core.compute.cursor import Cursor
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.compute.unit_error import UnitError
from agileml.core.parameters.fold import Contribution, Fold
from agileml.core.parameters.layout import Dense, Layout, Sparse
from straggler.coverage import Units, span
from tests.thorough import examples

SLICES, PARTS, ROWS = 4, 2, 200
ALL = span(0, SLICES * PARTS)


class Toy(Application):
    """Every unit reads random rows; what it returns tells which unit read what."""

    many: list[list[Unit]]

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.many = []

    def tables(self) -> list[Table]:
        return [
            Table("dense", 5, 7),
            Table("sparse", ROWS, 3, sparse=True),
            Table("steps", 4, 2, "float64", sparse=True, update=Update.STEP),
        ]

    def initial(self, table: Table) -> np.ndarray:
        return self.settings.rng(7, table.rows).normal(size=(table.rows, table.columns)).astype(table.dtype)

    def load(self, slice_index: int) -> int:
        return 100 + slice_index

    def reads(self, unit: Unit, items: int) -> Mapping[str, np.ndarray]:
        rng = self.settings.rng(unit.clock, unit.slice, unit.part)
        few = rng.integers(0, 4, rng.integers(0, 3))
        return {"sparse": np.unique(rng.integers(0, ROWS, 12)).astype(np.int32), "steps": np.unique(few)}

    def process(self, unit: Unit, items: int, parameters: Mapping[str, np.ndarray]) -> Updates:
        assert items == 100 + unit.slice
        updates = {name: values * values.dtype.type(items) + unit.part for name, values in parameters.items()}
        if unit.slice % 2:
            del updates["dense"]
        return Updates(updates, loss=float(items), examples=unit.part + 1)


def make(
    kind: type[Toy] = Toy, partitions: int = 3, deterministic: bool = True
) -> tuple[UnitComputer, dict[str, np.ndarray]]:
    app = kind(Settings(slices=SLICES, clocks_per_pass=4))
    work = UnitComputer(app, Layout(checked_tables(app), partitions), PARTS, deterministic=deterministic)
    work.load(range(SLICES))
    return work, initial_values(app, app.tables())


def pull(work: UnitComputer, values: Mapping[str, np.ndarray], wanted: Any) -> list[list[np.ndarray]]:
    return [
        [b if rows is None else b[rows] for b, rows in zip(work.layout.blocks(values, p), parts, strict=True)]
        for p, parts in enumerate(wanted)
    ]


def run(
    work: UnitComputer, values: Mapping[str, np.ndarray], clock: int, bundles: list[Units]
) -> list[list[Contribution]]:
    reads = work.reads(clock, bundles)
    inputs = work.assemble(reads, pull(work, values, reads.by_partition))
    return [work.compute(inputs, bundle) for bundle in bundles]


def whole(work: UnitComputer, contributions: list[Contribution]) -> dict[str, np.ndarray]:
    """Updates as whole tables, zero where there is none."""
    tables = {t.name: np.zeros((t.rows, t.columns), t.dtype) for t in work.layout.tables}
    for p, contribution in enumerate(contributions):
        for index, (table, block) in enumerate(zip(work.layout.tables, contribution.blocks, strict=True)):
            start, stop = work.layout.range_of(index, p)
            if isinstance(block, Sparse):
                tables[table.name][block.rows + start] = block.values
            elif isinstance(block, Dense):
                tables[table.name].reshape(-1)[start:stop] = block.values
    return tables


@settings(deadline=None, derandomize=True, max_examples=examples(50))
@given(st.integers(1, 5), st.integers(0, 30), st.integers(1, 2**8 - 1), st.booleans())
def test_a_unit_gets_what_it_reads_and_a_bundle_is_the_sum(
    partitions: int, clock: int, bundle: Units, apart: bool
) -> None:
    work, values = make(partitions=partitions, deterministic=False)
    app = work.application
    units = [u for u in range(SLICES * PARTS) if bundle >> u & 1]
    expected = {name: np.zeros(array.shape) for name, array in values.items()}
    for number in units:
        unit = work.unit(clock, number)
        rows: dict[str, Any] = dict(app.reads(unit, 0))
        updates = app.process(
            unit, 100 + unit.slice, {n: v[rows.get(n, slice(None))] for n, v in values.items()}
        )
        for name, update in updates.tables.items():
            expected[name][rows.get(name, slice(None))] += update
    bundles = [1 << u for u in units] if apart else [bundle]
    found = run(work, values, clock, bundles)
    sums = [whole(work, contributions) for contributions in found]
    for name, array in expected.items():
        np.testing.assert_allclose(sum(s[name] for s in sums), array, rtol=1e-5, atol=1e-3)
    assert sum(c[0].loss for c in found) == sum(100 + u // PARTS for u in units)
    assert sum(c[0].examples for c in found) == sum(u % PARTS + 1 for u in units)
    assert all(c.loss == 0 and c.examples == 0 for contributions in found for c in contributions[1:])


@pytest.mark.parametrize("bundles", [[0b1111, 0b110000, 1 << 6, 1 << 7], [1 << u for u in range(8)]])
def test_any_deal_folds_to_the_same_bits(bundles: list[Units]) -> None:
    def total(deal: list[Units]) -> list[Any]:
        work, values = make()
        folds = [Fold(deterministic=True) for _ in range(3)]
        for bundle, contributions in zip(deal, run(work, values, 3, deal), strict=True):
            for fold, contribution in zip(folds, contributions, strict=True):
                fold.add(bundle, contribution)
        return [None if b is None else b.values.tobytes() for fold in folds for b in fold.total().blocks]

    assert total(bundles) == total([ALL])


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_unit_may_update_some_of_the_rows_that_it_reads(deterministic: bool) -> None:
    class Some(Toy):
        def process(self, unit: Unit, items: int, parameters: Mapping[str, np.ndarray]) -> Updates:
            read = self.reads(unit, items)["sparse"]
            some = read[read % 2 == unit.slice % 2]
            return Updates({"sparse": np.ones((len(some), 3), np.float32)}, rows={"sparse": some})

    work, values = make(Some, deterministic=deterministic)
    (contributions,) = run(work, values, 2, [ALL])
    expected = np.zeros((ROWS, 3))
    updated = set()
    for number in range(SLICES * PARTS):
        unit = work.unit(2, number)
        read = work.application.reads(unit, 0)["sparse"]
        some = read[read % 2 == unit.slice % 2]
        expected[some] += 1
        updated |= set(some.tolist())
    assert np.array_equal(whole(work, contributions)["sparse"], expected)
    found = {
        int(row) + work.layout.range_of(1, partition)[0]
        for partition, contribution in enumerate(contributions)
        if isinstance(contribution.blocks[1], Sparse)
        for row in contribution.blocks[1].rows
    }
    assert found == updated, "no other row may look like an updated one"


def test_rows_beyond_32_bits_are_updated() -> None:
    read = np.array([5, 2**31 + 7, 2**32 - 1])

    class Wide(Toy):
        def tables(self) -> list[Table]:
            return [Table("wide", 2**32, 1, sparse=True)]  # of which nobody holds a block here

        def reads(self, unit: Unit, items: int) -> Mapping[str, np.ndarray]:
            return {"wide": read}

        def process(self, unit: Unit, items: int, parameters: Mapping[str, np.ndarray]) -> Updates:
            return Updates({"wide": np.array([[1.0], [2.0], [3.0]], np.float32)})

    app = Wide(Settings(slices=2))
    work = UnitComputer(app, Layout(checked_tables(app), 4))
    work.load(range(2))
    reads = work.reads(0, [0b11])
    pulled = [[np.zeros((len(rows), 1), np.float32) for rows in some] for some in reads.by_partition]
    found = work.compute(work.assemble(reads, pulled), 0b11)
    updated = {
        int(row) + work.layout.range_of(0, partition)[0]: float(value)
        for partition, contribution in enumerate(found)
        if isinstance(block := contribution.blocks[0], Sparse)
        for row, value in zip(block.rows, block.values[:, 0], strict=True)
    }
    assert updated == dict(zip(read.tolist(), [2.0, 4.0, 6.0], strict=True))
    assert all(c.blocks[0] is None or c.blocks[0].rows.dtype == np.int32 for c in found)


def test_parameters_are_read_only() -> None:
    class Writer(Toy):
        def process(self, unit: Unit, items: int, parameters: Mapping[str, np.ndarray]) -> Updates:
            for values in parameters.values():
                assert not values.flags.writeable
            return super().process(unit, items, parameters)

    for partitions in (1, 3):
        work, values = make(Writer, partitions)
        run(work, values, 0, [ALL])
        assert all(array.flags.writeable for array in values.values())


def test_many_units_at_once_is_only_asked_for_without_determinism() -> None:
    class Many(Toy):
        def process_many(self, units: Any, items: Any, rows: Any, parameters: Any) -> Updates | None:
            self.many.append(list(units))
            assert {name: len(r) for name, r in rows.items()} == {n: len(parameters[n]) for n in rows}
            return Updates({"sparse": np.ones_like(parameters["sparse"])}, 5.0, len(units))

    work, values = make(Many, deterministic=False)
    (some, alone) = run(work, values, 2, [0b1011, 1 << 6])
    assert isinstance(work.application, Many)
    assert work.application.many == [[Unit(2, 0, 0, 2), Unit(2, 0, 1, 2), Unit(2, 1, 1, 2)]]
    assert (some[0].loss, some[0].examples) == (5.0, 3)
    rows = np.unique(
        np.concatenate([work.application.reads(work.unit(2, u), 0)["sparse"] for u in (0, 1, 3)])
    )
    assert np.flatnonzero(whole(work, some)["sparse"][:, 0]).tolist() == rows.tolist()
    assert alone[0].loss == 103
    work, values = make(Many, deterministic=True)
    run(work, values, 2, [0b11])
    assert isinstance(work.application, Many)
    assert work.application.many == []


@pytest.mark.parametrize("too_few", [False, True])
def test_units_whose_sums_are_exact_are_computed_at_once_if_none_is_given_away(too_few: bool) -> None:
    class Each(Toy):
        sums_are_exact = True

        def process_each(self, units: Any, items: Any, rows: Any, parameters: Any) -> list[Updates]:
            self.many.append(list(units))
            first = Updates({"sparse": np.full_like(parameters["sparse"], len(units))}, 1.0, 2)
            return [first, *(Updates({}, 0.5, 1) for _ in units[too_few + 1 :])]

    work, values = make(Each, deterministic=True)
    assert isinstance(work.application, Each)
    if too_few:
        with pytest.raises(UnitError, match=r"returned 3 updates, expected one for each of 4 units") as found:
            run(work, values, 2, [0b1111])
        assert found.value.place == "clock 2, units 0-3"
        return
    some, alone = run(work, values, 2, [0b1111, 1 << 6])
    assert (some[0].loss, some[0].examples) == (2.5, 5)
    loose, other = make(Each, deterministic=False)
    ((both, *_),) = run(loose, other, 2, [0b1101])
    assert (both.loss, both.examples) == (2.0, 4), "in a job whose order of adding does not count, too"
    assert (whole(work, some)["sparse"].max(), alone[0].loss) == (4, 103)
    reads = work.reads(2, [0b1111])
    inputs = work.assemble(reads, pull(work, values, reads.by_partition))
    cursor = Cursor(4)
    with cursor.held():
        cursor.end_at(3)
    assert [units for units, _ in work.sums(inputs, 0b1111, cursor)] == [0b11, 0b100]
    assert len(work.application.many) == 1


def returning(updates: Any) -> type[Toy]:
    class Wrong(Toy):
        def process(self, unit: Unit, items: int, parameters: Mapping[str, np.ndarray]) -> Updates:
            return (
                updates(parameters)
                if (unit.slice, unit.part) == (2, 1)
                else super().process(unit, items, parameters)
            )

    return Wrong


WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda p: None, r"process\(\) returned nothing, expected agileml.application.Updates"),
    (lambda p: Updates({"spars": p["sparse"]}), r"updated 'spars', expected one of dense, sparse, steps"),
    (
        lambda p: Updates({"dense": np.zeros((5, 8), "f4")}),
        r"shape \(5, 8\) .* expected .* \(5, 7\) and dtype float32",
    ),
    (lambda p: Updates({"dense": np.zeros((5, 7))}), r"dtype float64, expected .* dtype float32"),
    (lambda p: Updates({"dense": [1.0]}), r"table 'dense' returned a value of type list"),
    (
        lambda p: Updates({"sparse": np.ones((1, 3), "f4")}, rows={"sparse": np.array([ROWS])}),
        r"table 'sparse' returned rows to update that reads\(\) did not name, expected some of those",
    ),
    (lambda p: Updates({}, rows={"sparse": np.array([3, 3])}), "not ascending and distinct"),
    (lambda p: Updates({}, rows={"dense": np.arange(2)}), r"named rows of 'dense', expected only sparse"),
    (lambda p: Updates({}, loss=float("nan")), r"returned a loss of nan: the training diverged"),
    (lambda p: Updates({}, loss=float("inf")), r"returned a loss of inf: the training diverged"),
]


@pytest.mark.parametrize(("updates", "problem"), WRONG)
def test_wrong_updates_are_one_sentence_with_the_unit(updates: Callable[[Any], Any], problem: str) -> None:
    work, values = make(returning(updates))
    with pytest.raises(UnitError, match=problem) as found:
        run(work, values, 6, [ALL])
    assert found.value.place == "clock 6, slice 2, part 1"
    assert found.value.trace == ""
    assert "\n" not in str(found.value)


WRONG_READS: list[tuple[Any, str]] = [
    ({}, "named no rows of the sparse table 'sparse'"),
    ({"dense": np.arange(2)}, r"named 'dense', expected only sparse tables \(sparse, steps\)"),
    ({"sparse": np.array([3, 3]), "steps": np.arange(2)}, "not ascending and distinct"),
    ({"sparse": np.array([3, 200]), "steps": np.arange(2)}, "rows 3 to 200, expected rows from 0 to 199"),
    ({"sparse": np.array([-1, 3]), "steps": np.arange(2)}, "rows -1 to 3"),
    ({"sparse": [1, 2], "steps": np.arange(2)}, "a value of type list, expected a vector of int32 or int64"),
    ({"sparse": np.ones(2), "steps": np.arange(2)}, "dtype float64, expected a vector of int32 or int64"),
]


@pytest.mark.parametrize(("rows", "problem"), WRONG_READS)
def test_wrong_reads_are_one_sentence_with_the_unit(rows: Any, problem: str) -> None:
    class Wrong(Toy):
        def reads(self, unit: Unit, items: int) -> Mapping[str, np.ndarray]:
            return rows  # type: ignore[no-any-return]

    work, _ = make(Wrong)
    with pytest.raises(UnitError, match=problem) as found:
        work.reads(4, [1 << 5])
    assert found.value.place == "clock 4, slice 2, part 1"


def test_an_exception_of_user_code_keeps_its_traceback_and_survives_a_process_border() -> None:
    class Broken(Toy):
        def process(self, unit: Unit, items: int, parameters: Mapping[str, np.ndarray]) -> Updates:
            raise KeyError("a mistake of the user")

    work, values = make(Broken)
    with pytest.raises(UnitError) as found:
        run(work, values, 1, [0b11])
    error = pickle.loads(pickle.dumps(found.value))  # noqa: S301 (our own bytes)
    assert str(error) == str(found.value)
    assert error.place == "clock 1, slice 0, part 0"
    assert error.problem == "KeyError: 'a mistake of the user'"
    assert 'raise KeyError("a mistake of the user")' in error.trace


def test_loading_bad_data_is_bad_input_and_anything_else_names_the_slice() -> None:
    class Loads(Toy):
        def load(self, slice_index: int) -> int:
            raise InputError("data.path: x.csv is empty") if slice_index == 1 else ZeroDivisionError("oops")

    work = UnitComputer(Loads(Settings(slices=4)), Layout((Table("t", 1, 1),), 1))
    with pytest.raises(InputError, match=r"^data.path: x.csv is empty$"):
        work.load([1])
    with pytest.raises(UnitError, match="loading slice 2: ZeroDivisionError: oops"):
        work.load([2])


class Initial(Toy):
    def __init__(self, tables: list[Table], values: Any = None) -> None:
        super().__init__(Settings())
        self._tables, self._values = tables, values

    def tables(self) -> list[Table]:
        return self._tables

    def initial(self, table: Table) -> np.ndarray:
        return self._values  # type: ignore[no-any-return]


def test_wrong_tables_and_initial_values() -> None:
    table = Table("w", 2, 3)
    with pytest.raises(ContractError, match="no table"):
        checked_tables(Initial([]))
    with pytest.raises(ContractError, match="each name once"):
        checked_tables(Initial([table, table]))
    with pytest.raises(ContractError, match=r"initial\(\) of table 'w' returned nothing"):
        initial_values(Initial([table]), [table])
    with pytest.raises(ContractError, match=r"expected an array of shape \(2, 3\)"):
        initial_values(Initial([table], np.zeros((3, 2), "f4")), [table])
    with pytest.raises(ContractError, match="not finite"):
        initial_values(Initial([table], np.full((2, 3), np.nan, "f4")), [table])
