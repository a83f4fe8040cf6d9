"""Ratings: MovieLens files (https://grouplens.org/datasets/movielens), told apart by content, and made ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from agileml.application import Array, InputError, Settings
from agileml.apps.data import Draw, check_enough, data_file, data_section, random_split
from agileml.config.section import Section

HEADER = ("userId", "movieId", "rating")
EXPECTED = (
    "expected MovieLens ratings.csv (header userId,movieId,rating,...) or u.data (user, item, rating by tabs)"
)

EXACT_IDS = 2.0**53  # below it float64 has every whole number
MOST_RATING = float(np.finfo(np.float32).max)

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class RatingsFile(Section):
    """A file of ratings: `ratings.csv` with its header, or `u.data` with tabs."""

    kind: Literal["ratings"] = "ratings"
    path: str
    test_fraction: Fraction = 0.1


class MadeRatings(Section):
    """Ratings drawn from the job's seed: mean 3.5 + biases + a product of rank `rank` + noise."""

    kind: Literal["made"] = "made"
    users: Count = 600
    items: Count = 900
    ratings: Count = 50_000
    rank: Count = 8
    noise: Annotated[float, Field(ge=0)] = 0.5
    test_fraction: Fraction = 0.1


@dataclass(frozen=True)
class Ratings:
    """`values[n]` (float32) is what user `users[n]` gave to item `items[n]` (int32, from 0)."""

    name: str
    users: Array
    items: Array
    values: Array
    user_count: int
    item_count: int


@dataclass(frozen=True)
class RatingsSplit:
    """Ratings with their fixed split; `train` and `test` are shuffled numbers of ratings."""

    ratings: Ratings
    train: Array
    test: Array
    mean: float  # of the training ratings


def load_split(settings: Settings) -> RatingsSplit:
    """The ratings that the `data` section names, with their split. Raises InputError, ConfigError."""
    default = "ratings" if "path" in settings.data else "made"
    section = data_section(settings, {"ratings": RatingsFile, "made": MadeRatings}, default)
    if isinstance(section, RatingsFile):
        ratings = read_ratings(section.path)
    else:
        assert isinstance(section, MadeRatings)
        ratings = make_ratings(section, settings.rng(Draw.MADE))
    train, test = random_split(len(ratings.values), section.test_fraction, settings)
    check_enough(len(train), ratings.name, settings)
    return RatingsSplit(ratings, train, test, float(ratings.values[train].mean(dtype=np.float64)))


def make_ratings(section: MadeRatings, rng: np.random.Generator) -> Ratings:
    """Ratings of random pairs; the biases and the product each have a standard deviation of about 0.5."""
    users = rng.integers(0, section.users, section.ratings, dtype=np.int32)
    items = rng.integers(0, section.items, section.ratings, dtype=np.int32)
    user_bias = rng.normal(0, 0.35, section.users)
    item_bias = rng.normal(0, 0.35, section.items)
    scale = math.sqrt(0.5) / section.rank**0.25
    left = rng.normal(0, scale, (section.users, section.rank))
    right = rng.normal(0, scale, (section.items, section.rank))
    values = 3.5 + user_bias[users] + item_bias[items] + rng.normal(0, section.noise, section.ratings)
    for column in range(section.rank):  # one column at a time: no ratings x rank array
        values += left[users, column] * right[items, column]
    return Ratings("made ratings", users, items, values.astype(np.float32), section.users, section.items)


@dataclass(frozen=True)
class _Format:
    delimiter: str
    columns: tuple[int, int, int]  # of user, item, rating
    header_lines: int


def read_ratings(path: str) -> Ratings:
    """Read a file of ratings; users and items are numbered in the ascending order of their ids.

    Raises InputError: no such file, another format, a line that is no rating, a rating that is not finite, empty.
    """
    file = data_file(path)
    found = _format_of(file, path)
    try:
        table = _columns(file, found, found.columns, np.float64)
    except ValueError as error:  # also what is no UTF-8
        raise InputError(_first_bad_line(file, path, found, str(error))) from None
    if not len(table):
        raise InputError(f"data.path: {path} has a header but no ratings")
    ids = table[:, :2]
    is_right = (
        np.isfinite(ids).all() and (ids == np.rint(ids)).all() and (abs(table[:, 2]) <= MOST_RATING).all()
    )
    if not is_right:
        raise InputError(_first_bad_line(file, path, found))
    if (abs(ids) >= EXACT_IDS).any():  # several ids may have become one number
        try:
            ids = _columns(file, found, found.columns[:2], np.int64)
        except ValueError as error:
            raise InputError(
                f"data.path: {path} has an id beyond 64 bits, or of more than digits ({error})"
            ) from None
    user_ids, users = np.unique(ids[:, 0], return_inverse=True)
    item_ids, items = np.unique(ids[:, 1], return_inverse=True)
    return Ratings(
        path,
        users.astype(np.int32),
        items.astype(np.int32),
        table[:, 2].astype(np.float32),
        len(user_ids),
        len(item_ids),
    )


def _columns(file: Path, found: _Format, columns: Sequence[int], dtype: Any) -> Array:
    """Columns of all lines, (lines, columns). Raises ValueError."""
    # Opened here: numpy would unpack what is only called .gz, .bz2 or .xz.
    with file.open(encoding="utf-8-sig") as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the caller tells that there is no data
        warnings.simplefilter("error", DeprecationWarning)  # a whole number read as a float
        return np.loadtxt(
            stream,
            dtype,
            comments=None,
            delimiter=found.delimiter,
            skiprows=found.header_lines,
            usecols=columns,
            ndmin=2,
        )


def _format_of(file: Path, path: str) -> _Format:
    with file.open("rb") as stream:
        start = stream.readline(4096)
    try:
        line = start.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise InputError(f"data.path: {path} is no text file, {EXPECTED}") from None
    names = [name.strip() for name in line.split(",")]
    if all(name in names for name in HEADER):
        user, item, rating = (names.index(name) for name in HEADER)
        return _Format(",", (user, item, rating), 1)
    fields = line.split("\t")
    if len(fields) >= 3 and _is_rating(fields[:3]):
        return _Format("\t", (0, 1, 2), 0)
    shown = line if len(line) <= 60 else line[:57] + "..."
    raise InputError(f"data.path: {path} begins with {shown!r}, {EXPECTED}")


def _is_rating(fields: Sequence[str]) -> bool:
    if not all(field.isascii() and "_" not in field for field in fields):  # Python reads more than numpy
        return False
    try:
        user, item, rating = map(float, fields)
    except ValueError:
        return False
    return user.is_integer() and item.is_integer() and abs(rating) <= MOST_RATING


def _first_bad_line(file: Path, path: str, found: _Format, why: str = "") -> str:
    """The sentence for the first line that holds no rating. `why`: what numpy said."""
    user, item, rating = found.columns
    with file.open(encoding="utf-8-sig", errors="replace") as stream:
        for number, line in enumerate(stream, start=1):
            text = line.rstrip("\r\n")
            fields = text.split(found.delimiter)
            if number <= found.header_lines or not text:
                continue
            if len(fields) <= max(found.columns) or not _is_rating(
                [fields[user], fields[item], fields[rating]]
            ):
                shown = text if len(text) <= 60 else text[:57] + "..."
                return (
                    f"data.path: {path} line {number} is {shown!r}, "
                    "expected a whole user id, a whole item id and a finite rating"
                )
    return f"data.path: {path} cannot be read ({why}), {EXPECTED}"
