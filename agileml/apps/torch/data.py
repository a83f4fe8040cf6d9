"""The items that a module is trained on: bundled kinds of data, or the user's own, and which of them a unit takes.

A minibatch of B items is cut over the U units of a clock: unit u takes places [u B // U, (u + 1) B // U). A slice
has a fixed share of the items, walks through it in a new order on every pass, and begins the next pass where the
last one ends, so every item comes once a pass. The order depends on the seed and the slice alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.utils.data import default_collate

from agileml.application import Array, InputError, Settings, Unit
from agileml.apps.data import Draw, share_of
from agileml.apps.labelled import Labelled, load_labelled
from agileml.apps.torch.names import called, function_named
from agileml.config.section import Section, validate
from agileml.config.text import ConfigError, nearest

SIDE = 28  # pixels of an MNIST image
KINDS = ("digits", "large_digits", "mnist", "npz", "blobs")


class Examples(Protocol):
    """Items by number; `take` returns a minibatch: the module's inputs, then the target."""

    def __len__(self) -> int: ...

    def take(self, numbers: Array) -> tuple[Tensor, ...]:
        """The items of these numbers, stacked."""


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
    """A torch.utils.data.Dataset with `__len__` and `__getitem__`; its items are put together as a DataLoader does."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, numbers: Array) -> tuple[Tensor, ...]:
        batch = default_collate([self.dataset[int(number)] for number in numbers])
        if not isinstance(batch, list | tuple) or len(batch) < 2 or not all(map(torch.is_tensor, batch)):
            raise InputError(
                "data.dataset: found an item of another form, expected (input, ..., target) of numbers"
            )
        return tuple(batch)


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


def load_data(settings: Settings, own: Any = None) -> DataSet:
    """The data of a job: `own` (a function without arguments, or what it would return), else what `data` names.

    Raises InputError, ConfigError.
    """
    if own is not None:
        found = called(own, "dataset") if callable(own) and not hasattr(own, "__getitem__") else own
        return _of_user(found, "dataset", "the given data set")
    data = dict(settings.data)
    if "dataset" in data:
        name = data.pop("dataset")
        if not isinstance(name, str):
            raise ConfigError(f"found {name!r}, expected package.file:function", key=("data", "dataset"))
        found = called(function_named(name, "data.dataset"), "data.dataset", **data)
        return _of_user(found, "data.dataset", name)
    if not data.keys() & {"kind", "path"}:
        raise ConfigError(
            f"missing, expected dataset: package.file:function, or kind: one of {', '.join(KINDS)}",
            key=("data",),
        )
    match data.get("kind"):
        case "mnist":
            return _mnist(validate(Mnist, data, ("data",)), settings)
        case "large_digits":
            return _large_digits(validate(LargeDigits, data, ("data",)), settings)
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


def _of_user(found: Any, key: str, name: str) -> DataSet:
    """(train, test), or train alone; each a Dataset or a tuple of arrays (input, ..., target)."""
    train, test = found, None
    if isinstance(found, tuple | list) and len(found) == 2 and not _is_array(found[0]):
        train, test = found
    examples = _examples(train, key)
    if not len(examples):
        raise InputError(f"{key}: {name} has no items to train on")
    return DataSet(name, examples, None if test is None else _examples(test, key))


def _is_array(found: Any) -> bool:
    return isinstance(found, np.ndarray | Tensor)


def _examples(found: Any, key: str) -> Examples:
    if isinstance(found, tuple | list) and len(found) >= 2 and all(map(_is_array, found)):
        tensors = tuple(torch.as_tensor(array) for array in found)
        sizes = {tuple(tensor.shape)[:1] for tensor in tensors}
        if len(sizes) != 1 or () in sizes:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise InputError(
                f"{key}: found arrays of shapes {shapes}, expected the same number of items in each"
            )
        return TensorExamples(tensors)
    if (
        hasattr(found, "__getitem__")
        and hasattr(found, "__len__")
        and not isinstance(found, tuple | list | dict | str)
    ):
        return DatasetExamples(found)
    raise InputError(
        f"{key}: found {type(found).__name__}, expected (train, test) or train, each a torch Dataset with a length "
        "or a tuple of arrays (input, ..., target)"
    )


@dataclass
class ExampleSlice:
    """The items of a slice: `numbers` of the training set, and the order of the pass that was used last."""

    numbers: Array
    order: tuple[int, Array] | None = None


@dataclass(frozen=True)
class Minibatches:
    """The items of each unit of a clock, of `count` training items, `batch` a clock."""

    settings: Settings
    count: int
    batch: int

    def share(self, slice_index: int) -> ExampleSlice:
        """The items of a slice, fixed for the run; sizes differ by at most one."""
        order = self.settings.rng(Draw.SHUFFLE).permutation(self.count)
        return ExampleSlice(order[share_of(self.count, slice_index, self.settings)])

    def range_of(self, unit: Unit) -> tuple[int, int]:
        """(start, stop) of the unit's places in the clock's minibatch."""
        units, number = self.settings.slices * unit.parts, unit.slice * unit.parts + unit.part
        return number * self.batch // units, (number + 1) * self.batch // units

    def numbers(self, unit: Unit, share: ExampleSlice) -> Array:
        """The items of a unit, in order."""
        slices = self.settings.slices
        first = unit.slice * self.batch // slices
        in_clock = (unit.slice + 1) * self.batch // slices - first
        start, stop = (unit.clock * in_clock - first + place for place in self.range_of(unit))
        here = len(share.numbers)
        pieces = []
        while here and start < stop:  # pass by pass
            turn, at = divmod(start, here)
            end = min(here, at + stop - start)
            pieces.append(share.numbers[self._order(unit.slice, turn, share)[at:end]])
            start += end - at
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def _order(self, slice_index: int, turn: int, share: ExampleSlice) -> Array:
        if share.order is None or share.order[0] != turn:
            rng = self.settings.rng(Draw.SHUFFLE, slice_index, turn)
            share.order = turn, rng.permutation(len(share.numbers))
        return share.order[1]


def concatenated(batches: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Minibatches of several units as one."""
    if len(batches) == 1:
        return batches[0]
    return tuple(torch.cat(columns) for columns in zip(*batches, strict=True))
