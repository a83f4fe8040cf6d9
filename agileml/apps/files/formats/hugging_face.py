"""Data sets of Hugging Face's library `datasets`, whose tables are mapped into memory: any item can be read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from agileml.application import Array, InputError
from agileml.config.packages import missing_package

TESTS = ("test", "validation")  # splits that are evaluated, the first that is there


class HuggingFaceDataset(Dataset[Any]):
    """A `datasets.Dataset`; one that has no format of its own gives tensors. Items of any other form, as those of a
    transform, are put together as a DataLoader does.

    inputs, target: columns that make an item (input, ..., target); without them an item is a mapping of its columns.
    """

    def __init__(self, dataset: Any, inputs: Sequence[str] = (), target: str | None = None) -> None:
        if (target is None) != (not inputs):
            raise InputError("data.inputs: found one of inputs and target, expected both or none")
        self._fields = (*inputs, *([target] if target is not None else ()))
        known = dataset.column_names
        if unknown := [name for name in self._fields if name not in known]:
            raise InputError(f"data.inputs: found {unknown[0]}, expected some of {', '.join(known)}")
        plain = dataset.format["type"] is None
        self._dataset = dataset.with_format("torch", columns=dataset.format["columns"]) if plain else dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> Any:
        return self._formed(self._dataset[number])

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        return [self._formed(row) for row in self._dataset.__getitems__(list(numbers))]

    def batch(self, numbers: Array) -> Any | None:
        """The items put together, where the library makes tensors of columns; None: it does not."""
        if self._dataset.format["type"] != "torch":
            return None
        return self._formed(self._dataset[numbers.tolist()])

    def _formed(self, columns: Mapping[str, Any]) -> Any:
        return tuple(columns[name] for name in self._fields) if self._fields else dict(columns)


def opened(path: str, name: str | None, split: str, test_split: str | None) -> tuple[Any, Any]:
    """(train, test or None): of a folder that `save_to_disk` has written, or of what `load_dataset` finds under a path.

    Raises InputError.
    """
    if missing := missing_package("datasets"):
        raise InputError(f"data.kind: Hugging Face's data sets: {missing}")
    import datasets

    try:
        if Path(path, "dataset_dict.json").is_file() or Path(path, "state.json").is_file():
            found = datasets.load_from_disk(path)
        else:
            found = datasets.load_dataset(path, name)
    except Exception as error:  # of any of the library's own kinds
        why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise InputError(f"data.path: {path} cannot be loaded as a data set ({why})") from error
    if isinstance(found, datasets.Dataset):
        if test_split is not None:
            raise InputError(f"data.test_split: found {test_split}, expected none: {path} has one split")
        return found, None
    train, test = _split(found, split, "split"), None
    if test_split is not None:
        test = _split(found, test_split, "test_split")
    return train, test if test_split is not None else tests_of(found)


def _split(found: Mapping[str, Any], name: str, key: str) -> Any:
    if name not in found:
        raise InputError(f"data.{key}: found {name}, expected one of {', '.join(map(str, found))}")
    return found[name]


def tests_of(splits: Mapping[str, Any]) -> Any:
    """The split that is evaluated, if there is one."""
    return next((splits[name] for name in TESTS if name in splits), None)


def splits_of(found: Any) -> tuple[Any, Any] | None:
    """(train, test or None) of a `datasets.DatasetDict` with a split `train`; None for anything else."""
    library = sys.modules.get("datasets")  # nobody has one of its objects who has not imported it
    if library is None or not isinstance(found, library.DatasetDict) or "train" not in found:
        return None
    return found["train"], tests_of(found)


def is_hugging_face(found: Any) -> bool:
    """Whether it is a `datasets.Dataset`."""
    library = sys.modules.get("datasets")
    return library is not None and isinstance(found, library.Dataset)
