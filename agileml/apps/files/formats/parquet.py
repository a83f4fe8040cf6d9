"""Parquet files: row groups are read whole, and those that were used last are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agileml.application import Array, InputError
from agileml.apps.files.cache import DEFAULT_GIB
from agileml.apps.files.formats.columns import batch_of
from agileml.apps.files.formats.dataset import SHUFFLE_ITEMS, Decode, FileDataset
from agileml.apps.files.opening import data_files, tails
from agileml.apps.files.places import DataFile
from agileml.config.packages import missing_package

FOOTER_BYTES = 1 << 16  # of a file's end, which most often has all of its footer
MAGIC = b"PAR1"
END_BYTES = 8  # the length of the footer, and MAGIC
DEFAULT_MIB = 512.0
MIB = 1 << 20


@dataclass(frozen=True)
class RowGroup:
    """One of a file, by its number in the file."""

    file: DataFile
    number: int


class ParquetDataset(FileDataset):
    """The rows of Parquet files, for a torch job or as a torch Dataset.

        agileml.ParquetDataset("s3://bucket/train/*.parquet", inputs=["pixels"], target="label")

    Numbers, and lists of numbers of one length, become tensors: whole numbers int64 (uint8 stays), fractions float32.
    """

    def __init__(
        self,
        path: str | Sequence[str],
        *,
        columns: Sequence[str] | None = None,
        inputs: Sequence[str] = (),
        target: str | None = None,
        decode: Decode | str | None = None,
        shuffle_items: int = SHUFFLE_ITEMS,
        memory_mib: float = DEFAULT_MIB,
        cache_gib: float = DEFAULT_GIB,
    ) -> None:
        """path: a file, a folder of *.parquet, a pattern, an address of S3 or of fsspec's services, or a list of them.
        columns: those that are read; None: `inputs` and `target`, or all. memory_mib: row groups of so many MiB are
        kept. The others: as of FileDataset.

        Raises InputError.
        """
        if missing := missing_package("pyarrow"):
            raise InputError(f"data.kind: Parquet files: {missing}")
        name = path if isinstance(path, str) else f"{path[0]} ..." if path else "no file"
        super().__init__(
            name,
            inputs=inputs,
            target=target,
            decode=decode,
            shuffle_items=shuffle_items,
            cache_gib=cache_gib,
        )
        wanted = list(columns) if columns is not None else list(self._fields) or None
        self._memory_bytes = int(memory_mib * MIB)
        self._columns, found = _row_groups(data_files(path, ".parquet"), wanted)
        self._groups = [group for group, _ in found]
        self._set_groups([rows for _, rows in found])
        if not self._groups:
            raise InputError(f"data.path: {name} has no rows, expected items to train on")
        self._forget()

    def _forget(self) -> None:
        self._kept: OrderedDict[int, Any] = OrderedDict()

    def rows(self, numbers: Array) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._taken(numbers).to_pylist()
        return found

    def batch(self, numbers: Array) -> Any | None:
        if self._decode is not None:
            return None
        return self._formed(batch_of(self._taken(numbers)))

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        if self._decode is not None:
            return super().__getitems__(numbers)
        columns = batch_of(self._taken(np.array(numbers, int)))
        return [
            self._formed({name: _one(values, at) for name, values in columns.items()})
            for at in range(len(numbers))
        ]

    def _taken(self, numbers: Array) -> Any:
        """A table of these rows, in this order."""
        import pyarrow as pa

        parts, places = [], []
        for group, at, within in self._by_group(numbers):
            parts.append(self._group(group).take(pa.array(within)))
            places.append(at)
        if not parts:
            return self._group(0).slice(0, 0)
        return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(places))))

    def _group(self, number: int) -> Any:
        """A row group as a table, kept while there is room."""
        with self._lock:
            if number not in self._kept:
                self._kept[number] = self._read(self._groups[number])
            self._kept.move_to_end(number)
            while len(self._kept) > 1 and sum(t.nbytes for t in self._kept.values()) > self._memory_bytes:
                self._kept.popitem(last=False)
            return self._kept[number]

    def _read(self, group: RowGroup) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self._held(group.file) as path:
            try:
                # The cores compute: reading takes one.
                with pq.ParquetFile(path) as opened:
                    found = opened.read_row_group(group.number, columns=self._columns, use_threads=False)
            except (pa.ArrowException, OSError) as error:
                raise InputError(f"data.path: {group.file.url} is damaged ({_line(error)})") from None
        # Files may have the columns in another order, or say that one has a value in every row: rows of both join.
        return pa.table({name: _taken_from(found[name]) for name in self._columns})


def _taken_from(column: Any) -> Any:
    """A column of which rows can be taken, and join those of other files: Arrow takes none of its views of text and
    bytes, and each file has a dictionary of its own."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(column.type):
        return column.cast(_kind(column.type))
    if types.is_string_view(column.type):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if types.is_binary_view(column.type) else column


def _kind(kind: Any) -> Any:
    """The type of a column's values: how wide the numbers in a dictionary's place are depends on the file."""
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind


def _one(values: Any, at: int) -> Any:
    return {name: _one(v, at) for name, v in values.items()} if isinstance(values, dict) else values[at]


def _row_groups(
    files: Sequence[DataFile], columns: Sequence[str] | None
) -> tuple[list[str], list[tuple[RowGroup, int]]]:
    """The columns that are read, and the row groups that have rows, with their numbers. Raises InputError."""
    first = None
    found = []
    for file, footer in zip(files, _footers(files), strict=True):
        schema = footer.schema.to_arrow_schema()
        if columns and (unknown := [name for name in columns if name not in schema.names]):
            raise InputError(
                f"data.path: {file.url} has no column {unknown[0]}, but {', '.join(schema.names) or 'none'}"
            )
        names = list(columns or schema.names)
        if twice := [name for name in names if schema.names.count(name) > 1]:
            raise InputError(f"data.path: {file.url} has the column {twice[0]} twice, expected it once")
        kinds = {name: _kind(schema.field(name).type) for name in names}
        first = first or (file.url, kinds)
        if kinds != first[1]:
            name = next(n for n in {**first[1], **kinds} if first[1].get(n) != kinds.get(n))
            raise InputError(
                f"data.path: column {name} is {kinds.get(name) or 'missing'} in {file.url} and "
                f"{first[1].get(name) or 'missing'} in {first[0]}, expected the same columns in all files"
            )
        for number in range(footer.num_row_groups):
            if rows := footer.row_group(number).num_rows:
                found.append((RowGroup(file, number), rows))
    return list(first[1]) if first else [], found


def _footers(files: Sequence[DataFile]) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file, end in zip(files, tails(files, FOOTER_BYTES), strict=True):
        if len(end) < END_BYTES or not end.endswith(MAGIC):
            raise InputError(
                f"data.path: {file.url} is no Parquet file: it does not end with {MAGIC.decode()}"
            )
        length = int.from_bytes(end[-END_BYTES:-4], "little") + END_BYTES
        if length > file.bytes:
            raise InputError(f"data.path: {file.url} is damaged: its footer is longer than the file")
        if length > len(end):
            (end,) = tails([file], length)
        try:
            yield pq.read_metadata(pa.BufferReader(end))
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"data.path: {file.url} is damaged ({_line(error)})") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
