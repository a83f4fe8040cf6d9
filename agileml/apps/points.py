"""Items without labels, for clustering: the same sources as `labelled`, whose labels, if any, are not looked at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agileml.application import Array, InputError, Settings
from agileml.apps.data import Draw, check_enough, data_file, data_section, random_split
from agileml.apps.labelled import (
    TEST_NAMES,
    TRAIN_NAMES,
    Blobs,
    Digits,
    NpzFile,
    checked_items,
    digits,
    make_blobs,
    npz_arrays,
    scaling,
)
from agileml.config.section import Section


@dataclass(frozen=True)
class Points:
    """Items (n, features) as stored, with their fixed split. A feature is used as (stored - `offset`) / `scale`."""

    name: str
    train: Array
    test: Array
    split: str
    offset: Array
    scale: Array

    def scaled(self, items: Array) -> Array:
        """Stored items as float32 features."""
        return (items.astype(np.float32) - self.offset) / self.scale


def load_points(settings: Settings) -> Points:
    """The items that the `data` section names, split and scaled. Raises InputError, ConfigError."""
    default = "npz" if "path" in settings.data else "digits"
    kinds: dict[str, type[Section]] = {"digits": Digits, "npz": NpzFile, "blobs": Blobs}
    section = data_section(settings, kinds, default)
    assert isinstance(section, Digits | NpzFile | Blobs)
    test, unit = None, 1.0
    if isinstance(section, NpzFile):
        name = section.path
        items, test = read_points(section.path)
        unit = 255.0 if items.dtype == np.uint8 else 1.0
    elif isinstance(section, Blobs):
        name = "made blobs"
        items, _ = make_blobs(section, settings.rng(Draw.MADE))
    else:
        name = "digits"
        items, _ = digits()
        unit = 16.0
    split = "the file's own"
    if test is None:
        split = f"by seed {settings.seed}, {section.test_fraction:g} to test"
        train_rows, test_rows = random_split(len(items), section.test_fraction, settings)
        items, test = items[train_rows], items[test_rows]
    check_enough(len(items), name, settings)
    return Points(name, items, test, split, *scaling(items, unit, section.standardize))


def read_points(path: str) -> tuple[Array, Array | None]:
    """(items, the file's own test items or None) of an .npz file, flattened to (n, features). Raises InputError."""
    arrays = npz_arrays(data_file(path), path)
    name = next((items for items, _ in TRAIN_NAMES if items in arrays), None)
    if name is None:
        expected = ", ".join(dict.fromkeys(items for items, _ in TRAIN_NAMES))
        raise InputError(
            f"data.path: {path} has the arrays {', '.join(sorted(arrays)) or 'none'}, expected one of {expected}"
        )
    train = checked_items(path, name, arrays[name])
    test_name = next((items for items, _ in TEST_NAMES if items in arrays), None)
    if test_name is None:
        return train, None
    test = checked_items(path, test_name, arrays[test_name])
    if test.shape[1] != train.shape[1]:
        raise InputError(
            f"data.path: {path}: {name} has {train.shape[1]} features an item and {test_name} {test.shape[1]}, "
            "expected the same"
        )
    return train, test
