"""Items without labels, for clustering: the same sources as `labelled`, whose labels, if any, are not looked at."""

from __future__ import annotations

from dataclasses import dataclass

from agileml.application import Array, InputError, Settings
from agileml.apps.data import check_enough, data_file, random_split
from agileml.apps.labelled import (
    TEST_NAMES,
    TRAIN_NAMES,
    NpzFile,
    Scaled,
    checked_items,
    items_of_ours,
    items_section,
    npz_arrays,
    scaling,
)


@dataclass(frozen=True)
class Points(Scaled):
    """Items (n, features) as stored, with their fixed split."""

    name: str
    train: Array
    test: Array
    split: str
    offset: Array
    scale: Array


def load_points(settings: Settings) -> Points:
    """The items that the `data` section names, split and scaled. Raises InputError, ConfigError."""
    section = items_section(settings)
    test = None
    if isinstance(section, NpzFile):
        name = section.path
        items, test = read_points(section.path)
    else:
        name, items, _ = items_of_ours(section, settings)
    split = "the file's own"
    if test is None:
        split = f"by seed {settings.seed}, {section.test_fraction:g} to test"
        train_rows, test_rows = random_split(len(items), section.test_fraction, settings)
        items, test = items[train_rows], items[test_rows]
    check_enough(len(items), name, settings)
    return Points(name, items, test, split, *scaling(items, test, section))


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
