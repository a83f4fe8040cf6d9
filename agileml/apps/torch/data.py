"""The items that a module is trained on: bundled kinds of data, or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from agileml.application import Array, InputError, Settings
from agileml.apps.files.formats.dataset import SHUFFLE_ITEMS, FileDataset
from agileml.apps.files.formats.hugging_face import HuggingFaceDataset, is_hugging_face, splits_of
from agileml.apps.files.formats.sections import KINDS as FILE_KINDS
from agileml.apps.files.formats.sections import items_in_files
from agileml.apps.labelled import Labelled, load_labelled
from agileml.apps.torch.batches.read_groups import ReadGroups
from agileml.apps.torch.batches.trees import tensors
from agileml.apps.torch.names import called
from agileml.apps.user_code import function_named
from agileml.config.section import Section, validate
from agileml.config.text import ConfigError, nearest, show

Collate = Callable[[Any], Any]
SIDE = 28  # pixels of an MNIST image
KINDS = ("digits", "large_digits", "mnist", "npz", "blobs", *FILE_KINDS)


class Examples(Protocol):
    """Items by number; `take` returns a batch: a tree of tensors, most often (input, ..., target)."""

    def __len__(self) -> int: ...

    def take(self, numbers: Array) -> Any:
        """The items of these numbers, put together."""


@dataclass(frozen=True)
class TensorExamples:
    """Tensors whose first axis counts the items."""

    tensors: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.tensors[0])

    def take(self, numbers: Array) -> tuple[Tensor, ...]:
        at = torch.from_numpy(numbers)
        return tuple(tensor[at] for tensor in self.tensors)


@dataclass(frozen=True)
class DatasetExamples:
    """A torch.utils.data.Dataset with `__len__` and `__getitem__` or `__getitems__`.

    Items are put together by `collate`, or as a DataLoader does without one. A data set of ours may have `batch`, which
    does it faster. One whose items lie together in groups says so by `read_groups`: their sizes, in order.
    """

    dataset: Any
    collate: Callable[[Any], Any] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def read_groups(self) -> ReadGroups | None:
        """The groups in which items are read. Raises InputError."""
        sizes = getattr(self.dataset, "read_groups", None)
        if sizes is None:
            return None
        try:
            groups = ReadGroups(
                tuple(map(int, sizes)), int(getattr(self.dataset, "shuffle_items", SHUFFLE_ITEMS))
            )
        except (TypeError, ValueError):
            groups = None
        if groups is None or min(groups.sizes, default=0) < 1 or sum(groups.sizes) != len(self):
            raise InputError(
                f"data.dataset: found read_groups {show(sizes)}, expected the sizes of groups of items that lie "
                f"together, whose sum is the {len(self)} items"
            )
        return groups

    def take(self, numbers: Array) -> Any:
        has_batches = self.collate is None and isinstance(self.dataset, FileDataset | HuggingFaceDataset)
        if has_batches and (made := self.dataset.batch(numbers)) is not None:
            return made
        items = self._items([int(number) for number in numbers])
        try:
            batch = default_collate(items) if self.collate is None else self.collate(items)
        except TypeError as error:
            if self.collate is not None:
                raise
            raise InputError(
                f"data.dataset: found an item that cannot be put together with others ({error}), expected trees of "
                "tensors and numbers, or a collate function"
            ) from error
        if next(tensors(batch), None) is None:
            raise InputError(
                f"data.dataset: found a batch of type {type(batch).__name__} without tensors, expected a tree of them"
            )
        return tuple(batch) if type(batch) is list else batch

    def _items(self, numbers: list[int]) -> Any:
        try:
            if callable(together := getattr(self.dataset, "__getitems__", None)):
                return together(numbers)
            return [self.dataset[number] for number in numbers]
        except IndexError as error:
            raise InputError(
                f"data.dataset: found no item {error} of the {len(self)} that its length promises, expected a "
                "data set that keeps its items"
            ) from error


def groups_of(examples: Examples) -> ReadGroups | None:
    """The groups in which items are read, where a data set has such. Raises InputError."""
    return examples.read_groups if isinstance(examples, DatasetExamples) else None


@dataclass(frozen=True)
class LabelledExamples:
    """Items of the bundled kinds: scaled when they are taken, in the given shape."""

    items: Array
    labels: Array
    labelled: Labelled
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, numbers: Array) -> tuple[Tensor, ...]:
        features = self.labelled.scaled(self.items[numbers]).reshape(-1, *self.shape)
        return torch.from_numpy(features), torch.from_numpy(self.labels[numbers])


@dataclass(frozen=True)
class DataSet:
    """The training data and, if there is some, the test data."""

    name: str
    train: Examples
    test: Examples | None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Mnist(Section):
    """MNIST from an .npz file, or s3://bucket/key."""

    kind: Literal["mnist"] = "mnist"
    path: str
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.2


class LargeDigits(Section):
    """scikit-learn's 1,797 digits of 8 x 8 pixels, drawn as large as MNIST's."""

    kind: Literal["large_digits"] = "large_digits"
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.2


def load_data(settings: Settings, own: Any = None, collate: Collate | None = None) -> DataSet:
    """The data of a job: `own` (a function without arguments, or what it would return), else what `data` names.

    collate: puts the items of a Dataset together; None: as a DataLoader does.

    Raises InputError, ConfigError.
    """
    if own is not None:
        # A class has the methods of its data sets.
        is_function = callable(own) and (isinstance(own, type) or not hasattr(own, "__getitem__"))
        found = called(own, "dataset") if is_function else own
        return _of_user(found, "dataset", "the given data set", collate)
    data = dict(settings.data)
    if "dataset" in data:
        name = data.pop("dataset")
        if not isinstance(name, str):
            raise ConfigError(f"found {name!r}, expected package.file:function", key=("data", "dataset"))
        found = called(function_named(name, "data.dataset"), "data.dataset", **data)
        return _of_user(found, "data.dataset", name, collate)
    if not data.keys() & {"kind", "path"}:
        raise ConfigError(
            f"missing, expected dataset: package.file:function, or kind: one of {', '.join(KINDS)}",
            key=("data",),
        )
    if data.get("kind") not in FILE_KINDS:
        _check_collate(collate, "data.kind")
    match data.get("kind"):
        case "mnist":
            return _mnist(validate(Mnist, data, ("data",)), settings)
        case "large_digits":
            return _large_digits(validate(LargeDigits, data, ("data",)), settings)
        case str(kind) if kind in FILE_KINDS:
            return _of_user(items_in_files(data), "data.path", str(data.get("path")), collate)
        case str(kind) if kind not in KINDS:
            raise ConfigError(f"found {kind}, {nearest(kind, KINDS)}", key=("data", "kind"))
    shape = _shape(data.pop("shape", None))
    labelled = load_labelled(_with_data(settings, data))
    shape = shape or (labelled.features,)
    if prod(shape) != labelled.features:
        raise ConfigError(
            f"found {list(shape)}, expected {labelled.features} numbers an item, as {labelled.name} has",
            key=("data", "shape"),
        )
    return _of_labelled(labelled, shape)


def _with_data(settings: Settings, data: Mapping[str, Any]) -> Settings:
    return Settings(data, settings.model, settings.seed, settings.slices, settings.clocks_per_pass)


def _shape(found: Any) -> tuple[int, ...] | None:
    if found is None:
        return None
    if not isinstance(found, list | tuple) or not found or not all(type(n) is int and n > 0 for n in found):
        raise ConfigError(f"found {found!r}, expected a list such as [1, 28, 28]", key=("data", "shape"))
    return tuple(found)


def _of_labelled(labelled: Labelled, shape: tuple[int, ...]) -> DataSet:
    test = None
    if len(labelled.test_labels):
        test = LabelledExamples(labelled.test_items, labelled.test_labels, labelled, shape)
    train = LabelledExamples(labelled.train_items, labelled.train_labels, labelled, shape)
    facts = {"classes": len(labelled.labels), "shape": list(shape), "split": labelled.split}
    return DataSet(labelled.name, train, test, facts)


def _mnist(section: Mnist, settings: Settings) -> DataSet:
    file = {"kind": "npz", "path": section.path, "test_fraction": section.test_fraction}
    labelled = load_labelled(_with_data(settings, file))
    if labelled.features != SIDE * SIDE:
        raise InputError(
            f"data.path: {section.path} has {labelled.features} numbers an item, expected {SIDE * SIDE}"
        )
    return _of_labelled(labelled, (1, SIDE, SIDE))


def _large_digits(section: LargeDigits, settings: Settings) -> DataSet:
    digits = load_labelled(_with_data(settings, {"kind": "digits", "test_fraction": section.test_fraction}))
    pixels = SIDE * SIDE
    enlarged = Labelled(
        "digits drawn 28 x 28",
        _enlarged(digits.train_items),
        digits.train_labels,
        _enlarged(digits.test_items),
        digits.test_labels,
        digits.labels,
        digits.split,
        np.zeros(pixels, np.float32),
        np.full(pixels, digits.scale[0], np.float32),
    )
    return _of_labelled(enlarged, (1, SIDE, SIDE))


def _enlarged(items: Array) -> Array:
    """Images of 8 x 8 as 28 x 28: every pixel three wide and high, a border of two."""
    images = items.reshape(-1, 8, 8).repeat(3, axis=1).repeat(3, axis=2)
    return np.pad(images, ((0, 0), (2, 2), (2, 2))).reshape(len(items), -1)


def _of_user(found: Any, key: str, name: str, collate: Collate | None) -> DataSet:
    """(train, test), or train alone; each a Dataset or a tuple of arrays (input, ..., target)."""
    train, test = found, None
    if (splits := splits_of(found)) is not None:
        train, test = splits
    elif isinstance(found, tuple | list) and len(found) == 2 and not _is_array(found[0]):
        train, test = found
    examples = _examples(train, key, collate)
    if not len(examples):
        raise InputError(f"{key}: {name} has no items to train on")
    name = getattr(train, "name", name) if isinstance(train, FileDataset) else name
    return DataSet(name, examples, None if test is None else _examples(test, key, collate))


def _check_collate(collate: Collate | None, key: str) -> None:
    """Raise InputError if there is a function, which would not be called."""
    if collate is not None:
        raise InputError(
            f"{key}: found arrays with a collate function, expected a Dataset: it gets a list of items"
        )


def _is_array(found: Any) -> bool:
    return isinstance(found, np.ndarray | Tensor)


def _tensor(array: Any, key: str) -> Tensor:
    try:
        return torch.as_tensor(array)
    except (TypeError, ValueError) as error:
        why = " ".join(str(error).partition(". ")[0].rstrip(".").split())
        raise InputError(
            f"{key}: found an array of dtype {array.dtype} that torch makes no tensor of ({why}), expected a plain "
            "array of numbers"
        ) from None


def _examples(found: Any, key: str, collate: Collate | None) -> Examples:
    if isinstance(found, tuple | list) and len(found) >= 2 and all(map(_is_array, found)):
        _check_collate(collate, key)
        tensors = tuple(_tensor(array, key) for array in found)
        sizes = {tuple(tensor.shape)[:1] for tensor in tensors}
        if len(sizes) != 1 or () in sizes:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise InputError(
                f"{key}: found arrays of shapes {shapes}, expected the same number of items in each"
            )
        return TensorExamples(tensors)
    if isinstance(found, DataLoader):
        raise InputError(
            f"{key}: found a DataLoader, expected the data set that it loads: machines make the batches themselves, by "
            "`batch_size` and `collate`"
        )
    if isinstance(found, IterableDataset):
        raise InputError(
            f"{key}: found {type(found).__name__}, an IterableDataset, expected a torch Dataset with a length and "
            "items by number: nobody could go on in the middle of a stream"
        )
    if is_hugging_face(found):
        return DatasetExamples(HuggingFaceDataset(found), collate)
    if (
        (hasattr(found, "__getitem__") or hasattr(found, "__getitems__"))
        and hasattr(found, "__len__")
        and not isinstance(found, tuple | list | dict | str)
    ):
        return DatasetExamples(found, collate)
    raise InputError(
        f"{key}: found {type(found).__name__}, expected (train, test) or train, each a torch Dataset with a length "
        "or a tuple of arrays (input, ..., target)"
    )
