"""Labelled items for classification: scikit-learn's digits, images or features in .npz files, and made blobs."""

from __future__ import annotations

import importlib.util
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from agileml.application import Array, InputError, Settings
from agileml.apps.data import Draw, check_enough, data_file, data_section, stratified_split
from agileml.config.section import Section

Fraction = Annotated[float, Field(ge=0, lt=1)]
MOST_FEATURE = float(np.finfo(np.float32).max)

# The names under which .npz files hold (items, labels), most explicit first.
TRAIN_NAMES = (
    ("x_train", "y_train"),
    ("X_train", "y_train"),
    ("train_images", "train_labels"),
    ("train_x", "train_y"),
    ("x", "y"),
    ("X", "y"),
    ("images", "labels"),
    ("data", "labels"),
    ("data", "target"),
    ("features", "labels"),
)
TEST_NAMES = (
    ("x_test", "y_test"),
    ("X_test", "y_test"),
    ("test_images", "test_labels"),
    ("test_x", "test_y"),
)


class Digits(Section):
    """The 1,797 digits of 8 x 8 pixels that come with scikit-learn."""

    kind: Literal["digits"] = "digits"
    test_fraction: Fraction = 0.2
    standardize: bool = False


class NpzFile(Section):
    """An .npz file with items and labels; its own test items if it has some, else a split by the job's seed."""

    kind: Literal["npz"] = "npz"
    path: str
    test_fraction: Fraction = 0.2
    standardize: bool = False


class Blobs(Section):
    """Made items: a Gaussian of unit variance around a random centre per class, centres `spread` apart or so."""

    kind: Literal["blobs"] = "blobs"
    examples: Annotated[int, Field(ge=2)] = 2000
    features: Annotated[int, Field(ge=1)] = 20
    classes: Annotated[int, Field(ge=2)] = 4
    spread: Annotated[float, Field(ge=0)] = 3.0
    test_fraction: Fraction = 0.2
    standardize: bool = False


ItemsSection = Digits | NpzFile | Blobs


class Scaled:
    """Items of which a feature is used as (stored - `offset`) / `scale`, both float64 vectors over the features."""

    offset: Array
    scale: Array

    def scaled(self, items: Array) -> Array:
        """Stored items as float32 features."""
        return self.unrounded(items).astype(np.float32, copy=False)

    def unrounded(self, items: Array) -> Array:
        """Stored items as features, in float64 where float32 cannot hold what is stored: a time in seconds is rounded
        by minutes there."""
        kind = np.float32 if np.can_cast(items.dtype, np.float32) else np.float64
        return (items.astype(kind) - self.offset.astype(kind)) / self.scale.astype(kind)


@dataclass(frozen=True)
class Labelled(Scaled):
    """Items with their fixed split: `*_items` (n, features) as stored, `*_labels` int64 from 0 to classes - 1."""

    name: str
    train_items: Array
    train_labels: Array
    test_items: Array
    test_labels: Array
    labels: tuple[int, ...]  # what each class is called in the data
    split: str
    offset: Array
    scale: Array

    @property
    def features(self) -> int:
        """Features of an item."""
        return int(self.train_items.shape[1])


def load_labelled(settings: Settings) -> Labelled:
    """The items that the `data` section names, split and scaled. Raises InputError, ConfigError."""
    section = items_section(settings)
    test = None
    if isinstance(section, NpzFile):
        name = section.path
        (items, labels), test = read_npz(section.path)
    else:
        name, items, labels = items_of_ours(section, settings)
    if test is None:
        split = f"stratified by seed {settings.seed}, {section.test_fraction:g} to test"
        train_rows, test_rows = stratified_split(labels, section.test_fraction, settings)
        test = items[test_rows], labels[test_rows]
        items, labels = items[train_rows], labels[train_rows]
    else:
        split = "the file's own"
    check_enough(len(items), name, settings)
    found, classes = np.unique(labels, return_inverse=True)
    if len(found) < 2:
        raise InputError(f"data: {name} has only the label {found[0]}, expected at least two")
    offset, scale = scaling(items, test[0], section)
    return Labelled(
        name,
        items,
        classes,
        test[0],
        _as_classes(test[1], found, name),
        tuple(found.tolist()),
        split,
        offset,
        scale,
    )


def items_section(settings: Settings) -> ItemsSection:
    """The `data` section of an application that takes items. Raises ConfigError."""
    default = "npz" if "path" in settings.data else "digits"
    kinds: dict[str, type[Section]] = {"digits": Digits, "npz": NpzFile, "blobs": Blobs}
    section = data_section(settings, kinds, default)
    assert isinstance(section, Digits | NpzFile | Blobs)
    return section


def items_of_ours(section: Digits | Blobs, settings: Settings) -> tuple[str, Array, Array]:
    """(name, items, labels) of data that needs no file."""
    if isinstance(section, Blobs):
        return "made blobs", *make_blobs(section, settings.rng(Draw.MADE))
    return "digits", *digits()


def scaling(items: Array, test: Array, section: ItemsSection) -> tuple[Array, Array]:
    """(offset, scale) of each feature: 0 and the largest stored value where the section's kind has one, or the mean and
    standard deviation of the items. Raises InputError where the test items cannot have the same."""
    features = items.shape[1]
    if not section.standardize:
        is_image = isinstance(section, NpzFile) and items.dtype == np.uint8
        if isinstance(section, NpzFile) and is_image != (test.dtype == np.uint8):
            raise InputError(
                f"data.path: {section.path} has training items of dtype {items.dtype} and test items of dtype "
                f"{test.dtype}, expected bytes, which are divided by 255, in both or in none"
            )
        unit = 16.0 if isinstance(section, Digits) else 255.0 if is_image else 1.0
        return np.zeros(features), np.full(features, unit)
    mean, spread = items.mean(axis=0, dtype=np.float64), items.std(axis=0, dtype=np.float64)
    # A constant feature becomes 0. Its mean and deviation may be off by rounding.
    is_constant = items.min(axis=0) == items.max(axis=0)
    mean[is_constant] = items[0, is_constant]
    spread[is_constant | (spread == 0)] = 1.0
    return mean, spread


def _as_classes(labels: Array, known: Array, name: str) -> Array:
    """Test labels as numbers of the classes that training has."""
    at = np.minimum(np.searchsorted(known, labels), len(known) - 1)
    unknown = labels[known[at] != labels]
    if len(unknown):
        raise InputError(f"data: {name} has the test label {unknown[0]}, which no training item has")
    return at


def digits() -> tuple[Array, Array]:
    """(items float32, labels) of the digits that come with scikit-learn."""
    # Straight from scikit-learn's file: importing its code takes a second of every worker.
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations is not None
    folder = Path(package.submodule_search_locations[0])
    rows = np.loadtxt(folder / "datasets" / "data" / "digits.csv.gz", np.float32, delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(np.int64)


def make_blobs(section: Blobs, rng: np.random.Generator) -> tuple[Array, Array]:
    """(items float32, labels) of the section; labels are dealt round, so no class is empty."""
    centres = rng.normal(
        0, section.spread / np.sqrt(2 * section.features), (section.classes, section.features)
    )
    labels = np.arange(section.examples) % section.classes
    items = rng.standard_normal((section.examples, section.features), np.float32)
    return items + centres.astype(np.float32)[labels], labels


Pair = tuple[Array, Array]


def read_npz(path: str) -> tuple[Pair, Pair | None]:
    """((items, labels), the file's own test pair or None) with items flattened to (n, features).

    Raises InputError: no such file, another format, no arrays of a known name, shapes that do not fit, labels that are
    no whole numbers, NaN, beyond float32, empty.
    """
    arrays = npz_arrays(data_file(path), path)
    names = _first_pair(arrays, TRAIN_NAMES)
    if names is None:
        expected = "; ".join(f"{items}, {labels}" for items, labels in TRAIN_NAMES)
        raise InputError(
            f"data.path: {path} has the arrays {', '.join(sorted(arrays)) or 'none'}, expected a pair of {expected}"
        )
    train = _checked_pair(path, arrays, names)
    test_names = _first_pair(arrays, TEST_NAMES)
    if test_names is None:
        return train, None
    test = _checked_pair(path, arrays, test_names)
    if test[0].shape[1] != train[0].shape[1]:
        raise InputError(
            f"data.path: {path}: {names[0]} has {train[0].shape[1]} features an item and "
            f"{test_names[0]} {test[0].shape[1]}, expected the same"
        )
    return train, test


def npz_arrays(file: Path, path: str) -> dict[str, Array]:
    """The arrays of an .npz file; those of no known name are empty. Raises InputError."""
    expected = "expected an .npz file of numpy arrays"
    try:
        opened = np.load(file, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise InputError(f"data.path: {path} is a single array (.npy), {expected}")
        with opened as found:
            wanted = {name for pair in (*TRAIN_NAMES, *TEST_NAMES) for name in pair}
            # Others are only named, not read. A member of a zip file that is no array is bytes.
            return {name: np.asarray(found[name]) if name in wanted else np.empty(0) for name in found.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise InputError(f"data.path: {path} is damaged ({error}), {expected}") from None
    except InputError:
        raise
    except ValueError as error:
        if "pickle" in str(error).lower() or "object" in str(error).lower():
            raise InputError(
                f"data.path: {path} is no .npz file or has pickled objects, which are never read, {expected}"
            ) from None
        raise InputError(f"data.path: {path} cannot be read ({error}), {expected}") from None


def _first_pair(arrays: Mapping[str, Array], names: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    return next((pair for pair in names if pair[0] in arrays and pair[1] in arrays), None)


def _checked_pair(path: str, arrays: Mapping[str, Array], names: tuple[str, str]) -> Pair:
    items, labels = arrays[names[0]], arrays[names[1]]
    checked = checked_items(path, names[0], items)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or len(labels) != len(items):
        raise InputError(
            f"data.path: {path}: {names[1]} has shape {labels.shape}, expected ({len(items)},) as "
            f"{names[0]} has {len(items)} items"
        )
    if labels.dtype.kind not in "buif" or (labels.dtype.kind == "f" and (labels != np.rint(labels)).any()):
        raise InputError(f"data.path: {path}: {names[1]} has dtype {labels.dtype}, expected whole numbers")
    if labels.dtype.kind in "uf" and (abs(labels.astype(np.float64)) >= 2.0**63).any():
        raise InputError(
            f"data.path: {path}: {names[1]} has the label {abs(labels).max():g}, expected whole numbers of 64 bits"
        )
    return checked, labels.astype(np.int64)


def checked_items(path: str, name: str, items: Array) -> Array:
    """The array `name` of a file as (n, features). Raises InputError unless it holds finite numbers of some items."""
    if items.ndim < 2 or items.dtype.kind not in "buif":
        raise InputError(
            f"data.path: {path}: {name} has shape {items.shape} and dtype {items.dtype}, "
            "expected numbers of shape (items, ...)"
        )
    if items.size == 0:
        raise InputError(f"data.path: {path}: {name} is empty, its shape is {items.shape}")
    items = items.reshape(len(items), -1)
    if items.dtype.kind == "f" and not np.isfinite(items).all():
        first = int(np.flatnonzero(~np.isfinite(items).all(axis=1))[0])
        raise InputError(
            f"data.path: {path}: item {first} of {name} has NaN or infinity, expected finite numbers"
        )
    # As plain numbers: float16 would compare itself with infinity, and warn of it.
    if items.dtype.kind == "f" and (found := max(float(items.max()), -float(items.min()))) > MOST_FEATURE:
        raise InputError(
            f"data.path: {path}: {name} has a value of {found:g}, expected at most {MOST_FEATURE:.3g}, the largest "
            "float32"
        )
    return items
