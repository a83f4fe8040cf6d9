"""The base of data sets in many files: items by number, the groups in which they are read, the form of an item."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from agileml.application import Array, InputError
from agileml.apps.files.cache import DEFAULT_GIB, GIB, FileCache, HeldFile
from agileml.apps.files.opening import held_file
from agileml.apps.files.places import DataFile
from agileml.apps.user_code import function_named

SHUFFLE_ITEMS = 10_000
Decode = Callable[[dict[str, Any]], Any]


class FileDataset(Dataset[Any]):
    """Items of several files, numbered through in the order of the files.

    read_groups: how many items are read together, in order. A torch job goes through one group after another, in a new
    order on every pass, and shuffles those together that have `shuffle_items` items. The list of its files is pickled
    with it, so every machine of a run has the same.
    """

    read_groups: Sequence[int]

    def __init__(
        self,
        name: str,
        *,
        inputs: Sequence[str] = (),
        target: str | None = None,
        decode: Decode | str | None = None,
        shuffle_items: int = SHUFFLE_ITEMS,
        cache_gib: float = DEFAULT_GIB,
    ) -> None:
        """name: of the whole, in errors and summaries. inputs, target: fields of a row that make an item
        (input, ..., target); without them an item is the row, a mapping. decode: makes an item of a row, or
        `package.file:function`. cache_gib: the most that files from afar take on this machine's disk."""
        if (target is None) != (not inputs):
            raise InputError("data.inputs: found one of inputs and target, expected both or none")
        self.name = name
        self.shuffle_items = shuffle_items
        self._fields = (*inputs, *([target] if target is not None else ()))
        self._decode = decode
        self._cache_bytes = int(cache_gib * GIB)
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Several items. Raises InputError."""
        decode = self._decoder()
        return [
            self._formed(row) if decode is None else decode(row) for row in self.rows(np.array(numbers, int))
        ]

    def batch(self, numbers: Array) -> Any | None:
        """The items put together, where that is faster than one by one; None: it is not. Raises InputError."""
        return None

    def rows(self, numbers: Array) -> list[dict[str, Any]]:
        """Rows as mappings of plain values. Raises InputError."""
        raise NotImplementedError

    def _formed(self, row: Mapping[str, Any]) -> Any:
        """An item, or a batch of them, of a row, or of columns."""
        if not self._fields:
            return dict(row)
        if missing := [name for name in self._fields if name not in row]:
            raise InputError(
                f"data.inputs: {self.name} has no {missing[0]} in every row, expected some of {', '.join(row)}"
            )
        return tuple(row[name] for name in self._fields)

    def _decoder(self) -> Decode | None:
        if isinstance(self._decode, str):
            return function_named(self._decode, "data.decode")
        return self._decode

    # -- groups and files -------------------------------------------------------------------------------------

    def _set_groups(self, sizes: Sequence[int]) -> None:
        self.read_groups = tuple(map(int, sizes))
        self._ends = np.cumsum(self.read_groups)

    def _by_group(self, numbers: Array) -> Iterator[tuple[int, Array, Array]]:
        """(group, places within `numbers`, places within the group) of each group that has some of these items."""
        groups = np.searchsorted(self._ends, numbers, side="right")
        for group in np.unique(groups):
            places = np.flatnonzero(groups == group)
            yield int(group), places, numbers[places] - (self._ends[group] - self.read_groups[group])

    def _held(self, file: DataFile) -> HeldFile:
        """Raises InputError."""
        found = held_file(file, FileCache(most_bytes=self._cache_bytes))
        if found is None:
            raise InputError(
                f"data.path: {file.url} was replaced since the run began, expected a file that stays"
            )
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_kept")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        """Keep nothing that was read."""
