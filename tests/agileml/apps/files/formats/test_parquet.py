"""Parquet files item by item: what comes out, what is read, and mistakes."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from agileml.application import InputError
from agileml.apps.files.formats import parquet
from agileml.apps.files.formats.parquet import ParquetDataset

ROWS = 50


def table(rows: int = ROWS, first: int = 0) -> pa.Table:
    numbers = np.arange(first, first + rows)
    return pa.table(
        {
            "number": pa.array(numbers, pa.int32()),
            "pixels": pa.array([[n, 2 * n] for n in numbers], pa.list_(pa.uint8(), 2)),
            "vector": pa.array([[n / 2, n, -n] for n in numbers], pa.list_(pa.float64())),
            "name": [f"n{n}" for n in numbers],
            "inner": pa.StructArray.from_arrays([pa.array(numbers % 2 == 0)], ["even"]),
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Two files with row groups of 8."""
    pq.write_table(table(30), tmp_path / "a.parquet", row_group_size=8)
    pq.write_table(table(20, 30), tmp_path / "b.parquet", row_group_size=8)
    return str(tmp_path)


def test_items_come_by_number_as_tensors(folder: str) -> None:
    found = ParquetDataset(folder)
    assert len(found) == ROWS and found.read_groups == (8, 8, 8, 6, 8, 8, 4)
    batch = found.batch(np.array([41, 3, 29, 3]))
    assert batch["number"].tolist() == [41, 3, 29, 3] and batch["number"].dtype == torch.int64
    assert batch["pixels"].dtype == torch.uint8 and batch["pixels"].tolist()[0] == [41, 82]
    assert (
        torch.equal(batch["vector"][1], torch.tensor([1.5, 3, -3])) and batch["vector"].dtype == torch.float32
    )
    assert batch["name"] == ["n41", "n3", "n29", "n3"]
    assert batch["inner"]["even"].tolist() == [False, False, False, False]
    one = found[41]
    assert one["name"] == "n41" and torch.equal(one["vector"], batch["vector"][0])
    with pytest.raises(IndexError):
        found[ROWS]


def test_inputs_and_target_make_pairs_and_a_function_makes_anything(folder: str) -> None:
    pairs = ParquetDataset(folder, inputs=["pixels", "vector"], target="number")
    pixels, vector, number = pairs.batch(np.array([7]))
    assert pixels.shape == (1, 2) and vector.shape == (1, 3) and number.tolist() == [7]
    made = ParquetDataset(folder, decode=lambda row: row["name"] + str(row["pixels"]))
    assert made.__getitems__([2, 40]) == ["n2[2, 4]", "n40[40, 80]"]
    assert made.batch(np.array([2])) is None


def test_only_some_row_groups_are_kept(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    reading: Callable[..., Any] = ParquetDataset._read
    monkeypatch.setattr(ParquetDataset, "_read", lambda self, g: read.append(g.number) or reading(self, g))
    all_kept = ParquetDataset(folder, columns=["number"])
    one_kept = ParquetDataset(folder, columns=["number"], memory_mib=1e-6)
    for data, times in ((all_kept, 7), (one_kept, 14)):
        read.clear()
        for _ in range(2):
            assert data.batch(np.arange(ROWS))["number"].tolist() == list(range(ROWS))
        assert len(read) == times


def test_it_travels_with_the_list_of_its_files(folder: str) -> None:
    data = ParquetDataset(folder, columns=["number"])
    pq.write_table(table(9), Path(folder) / "a0.parquet")
    found = copy.deepcopy(data)  # as pickle makes one
    assert len(found) == ROWS and found[30]["number"] == 30


def test_a_footer_of_any_length_is_read(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FOOTER_BYTES", 12)
    assert len(ParquetDataset(folder)) == ROWS


def test_types_of_arrow(tmp_path: Path) -> None:
    matrix = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.float32).reshape(2, 2, 3))
    nested = pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], pa.list_(pa.list_(pa.int16(), 2)))
    words = pa.array(["x", "y"]).dictionary_encode()
    pq.write_table(pa.table({"matrix": matrix, "nested": nested, "word": words}), tmp_path / "t.parquet")
    batch = ParquetDataset(str(tmp_path)).batch(np.array([1, 0]))
    assert batch["matrix"].shape == (2, 2, 3) and batch["matrix"][0, 0, 0] == 6
    assert batch["nested"].tolist() == [[[5, 6], [7, 8]], [[1, 2], [3, 4]]]
    assert batch["word"] == ["y", "x"]


def test_bytes_of_every_type_are_a_list(tmp_path: Path) -> None:
    kinds = [pa.binary(), pa.large_binary(), pa.binary(1), pa.binary_view()]
    columns = {str(at): pa.array([b"1", b"2"], kind) for at, kind in enumerate(kinds)}
    columns |= {f"text {kind}": pa.array(["1", "2"], kind) for kind in (pa.large_string(), pa.string_view())}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    batch = ParquetDataset(str(tmp_path)).batch(np.array([1, 0]))
    assert list(batch.values()) == 4 * [[b"2", b"1"]] + 2 * [["2", "1"]]


@pytest.mark.parametrize("columns", [None, ["x", "y"]])
def test_rows_of_files_with_another_order_of_columns_join(columns: list[str] | None, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [0.5], "y": [1]}), tmp_path / "a.parquet")
    strict = pa.schema([pa.field("y", pa.int64(), nullable=False), ("x", pa.float64())])
    pq.write_table(pa.table({"y": [2], "x": [1.5]}, strict), tmp_path / "b.parquet")
    found = ParquetDataset(str(tmp_path), columns=columns)
    batch = found.batch(np.array([1, 0]))
    assert list(batch) == ["x", "y"]
    assert batch["x"].tolist() == [1.5, 0.5] and batch["y"].tolist() == [2, 1]
    assert found.rows(np.array([0, 1])) == [{"x": 0.5, "y": 1}, {"x": 1.5, "y": 2}]


def test_rows_of_files_with_dictionaries_of_their_own_join(tmp_path: Path) -> None:
    """As pandas writes its categories: with few of them their numbers are narrower."""
    words = {"a": ["x", "y"], "b": ["z", "x"], "c": ["w"]}
    kinds = {"a": pa.dictionary(pa.int8(), pa.string()), "b": pa.dictionary(pa.int16(), pa.string())}
    for name, values in words.items():
        column = pa.array(values, kinds.get(name, pa.string()))
        pq.write_table(pa.table({"word": column}), tmp_path / f"{name}.parquet")
    found = ParquetDataset(str(tmp_path))
    assert found.batch(np.array([4, 2, 1, 3]))["word"] == ["w", "z", "y", "x"]
    assert found.rows(np.array([2])) == [{"word": "z"}]


def test_a_column_that_is_there_twice_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], ["x", "x"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="has the column x twice, expected it once"):
        ParquetDataset(str(tmp_path))


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[10:400] = bytes(390)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("columns", "written", "said"),
    [
        (["nummer"], {}, "a.parquet has no column nummer, but number, pixels, vector, name, inner"),
        (None, {"c.parquet": pa.table({"number": [1.5]})}, "column number is double in "),
        (None, {"c.parquet": b"not parquet"}, "c.parquet is no Parquet file"),
        (None, {"c.parquet": b"PAR1" + (9000).to_bytes(4, "little") + b"PAR1"}, "its footer is longer"),
        (None, {"c.parquet": b"PAR1xx" + (2).to_bytes(4, "little") + b"PAR1"}, "c.parquet is damaged ("),
    ],
)
def test_files_that_cannot_be_used_are_named(
    folder: str, columns: list[str] | None, written: dict[str, Any], said: str
) -> None:
    for name, content in written.items():
        if isinstance(content, bytes):
            (Path(folder) / name).write_bytes(content)
        else:
            pq.write_table(content, Path(folder) / name)
    with pytest.raises(InputError, match=r"^data\.path: ") as caught:
        ParquetDataset(folder, columns=columns)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array([[1], [1, 2]]), "column x has lists of 1 to 2 values, expected numbers, text, or lists"),
        (pa.array([1, None]), "column x has a row without a value"),
        (pa.array([0, 1], pa.timestamp("s")), "column x has the type timestamp[ms], expected numbers"),
        (pa.array([["a"], ["b"]]), "column x has the type list"),
        (pa.array([1, 2**63], pa.uint64()), f"column x has the value {2**63}, expected at most {2**63 - 1}"),
    ],
)
def test_values_that_are_no_tensors_are_named(tmp_path: Path, values: Any, said: str) -> None:
    pq.write_table(pa.table({"x": values}), tmp_path / "x.parquet")
    data = ParquetDataset(str(tmp_path))
    with pytest.raises(InputError) as caught:
        data.batch(np.array([0, 1]))
    assert said in str(caught.value)
    assert data.rows(np.array([0])), "a function of the user's may use them"


def test_a_file_that_is_damaged_or_replaced_later_is_named(folder: str) -> None:
    data = ParquetDataset(folder)
    damaged(Path(folder) / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet is damaged \("):
        data[0]
    pq.write_table(table(3), Path(folder) / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet was replaced since the run began"):
        data[45]
