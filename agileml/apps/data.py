"""Shared by all data sets: opening files, and splits and shares that depend on the job's seed alone."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

import numpy as np

from agileml.application import Array, InputError, Settings
from agileml.apps.files.cache import HeldFile
from agileml.apps.files.opening import check_file, fetched
from agileml.apps.files.places import is_address
from agileml.config.section import Section, validate
from agileml.config.text import ConfigError, nearest, show


class Draw(IntEnum):
    """The uses of random numbers: each has a stream of its own (the first key of `Settings.rng`)."""

    SPLIT = 1
    SHUFFLE = 2
    INITIAL = 3
    MADE = 4
    SAMPLE = 5


def data_section(settings: Settings, kinds: Mapping[str, type[Section]], default: str) -> Section:
    """The `data` section of a job, as the schema that its `kind` names. Raises ConfigError."""
    kind = settings.data.get("kind", default)
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(f"found {show(kind)}, {nearest(str(kind), kinds)}", key=("data", "kind"))
    return validate(kinds[kind], {"kind": kind, **settings.data}, ("data",))


_held: dict[Path, HeldFile] = {}  # files of the cache that this process reads, which must stay until it ends


def data_file(path: str) -> Path:
    """The file that `data.path` names, relative to the working folder, or at an address, which is downloaded.

    Raises InputError unless it can be read.
    """
    path = path.removeprefix("file://")
    if is_address(path):
        held = fetched(path)
        if _held.setdefault(held.path, held) is not held:
            held.close()  # it is held already
        return held.path
    check_file(Path(path), path)
    return Path(path)


def random_split(count: int, test_fraction: float, settings: Settings) -> tuple[Array, Array]:
    """(train, test) numbers of `count` items, both shuffled; the seed of the job fixes them."""
    order = settings.rng(Draw.SPLIT).permutation(count)
    test = round(test_fraction * count)
    return order[test:], order[:test]


def stratified_split(labels: Array, test_fraction: float, settings: Settings) -> tuple[Array, Array]:
    """(train, test) item numbers, ascending: of each label the same fraction, at least one left to train on."""
    rng = settings.rng(Draw.SPLIT)
    in_test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        in_test[members[: min(round(test_fraction * len(members)), len(members) - 1)]] = True
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)


def check_enough(items: int, what: str, settings: Settings) -> None:
    """Raise InputError unless every slice can have an item."""
    if items < settings.slices:
        raise InputError(
            f"data: {what} has {items} training items, expected at least one for each of the {settings.slices} slices"
        )


def share_of(count: int, index: int, settings: Settings) -> slice:
    """The items of slice `index`, of `count` shuffled ones; sizes differ by at most one."""
    return slice(index * count // settings.slices, (index + 1) * count // settings.slices)
