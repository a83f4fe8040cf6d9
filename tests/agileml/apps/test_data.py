"""Data of the applications: what can be read, what is refused and how, splits and shares."""

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import InputError, Settings
from agileml.apps.data import random_split, share_of, stratified_split
from agileml.apps.labelled import load_labelled, read_npz
from agileml.apps.points import load_points
from agileml.apps.ratings import load_split, read_ratings
from agileml.config.text import ConfigError
from tests.thorough import examples

CSV = "userId,movieId,rating,timestamp\n7,10,4.0,1\n7,30,3.5,2\n2,10,0.5,3\n"
TABS = "7\t10\t4\t1\n7\t30\t3.5\t2\n2\t10\t.5\t3\n"
EXAMPLES = settings(deadline=None, derandomize=True, max_examples=examples(100))


def write(folder: Path, text: str | bytes, name: str = "data") -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


# Told apart by content: neither name nor the order of the columns matters.
REORDERED = "rating,timestamp,movieId,userId\r\n4.0,1,10,7\r\n3.5,2,30,7\r\n0.5,3,10,2\r\n"


@pytest.mark.parametrize(
    "text", [CSV, TABS, CSV.rstrip(), TABS + "\n", REORDERED, "\ufeff" + CSV, "\ufeff" + TABS]
)
def test_both_kinds_of_movielens_files_give_the_same_ratings(tmp_path: Path, text: str) -> None:
    ratings = read_ratings(write(tmp_path, text))
    assert ratings.users.tolist() == [1, 1, 0]
    assert ratings.items.tolist() == [0, 1, 0]
    assert ratings.values.tolist() == [4.0, 3.5, 0.5]
    assert (ratings.user_count, ratings.item_count) == (2, 2)
    assert ratings.values.dtype == np.float32


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz"])
def test_ratings_that_a_browser_unpacked_may_keep_the_name_of_the_packed_file(
    tmp_path: Path, ending: str
) -> None:
    assert read_ratings(write(tmp_path, CSV, f"ratings.csv.{ending}")).values.tolist() == [4.0, 3.5, 0.5]


@EXAMPLES
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.integers(0, 1))
def test_large_ids_stay_apart(ids: list[int], column: int) -> None:
    ids = [each + step for each in ids for step in (0, -1) if each + step >= -(2**63)]
    lines = "".join(f"{each}\t7\t3\n" if column == 0 else f"7\t{each}\t3\n" for each in ids)
    with NamedTemporaryFile("w") as file:
        file.write(lines)
        file.flush()
        ratings = read_ratings(file.name)
    numbers, count = (
        (ratings.users, ratings.user_count) if column == 0 else (ratings.items, ratings.item_count)
    )
    order = sorted(set(ids))
    assert count == len(order)
    assert [order[number] for number in numbers] == ids


BAD_RATINGS = [
    ("", r"is empty \(0 bytes\)"),
    ("userId,movieId,rating,timestamp\n", "has a header but no ratings"),
    ("hello world\n", "begins with 'hello world', expected MovieLens"),
    (b"PK\x03\x04\xff\xfe\x00", "is no text file"),
    ("a,b,c\n1,2,3\n", "begins with 'a,b,c'"),
    (CSV + "1,2,nan,4\n", "line 5 is '1,2,nan,4', expected .* a finite rating"),
    (CSV + "1,2,inf,4\n", "line 5 is"),
    (CSV + "1,,3,4\n", "line 5 is"),
    (CSV + "1,2\n", "line 5 is '1,2'"),
    (CSV + "1.5,2,3,4\n", "line 5 is '1.5,2,3,4', expected a whole user id"),
    (CSV + "nan,2,3,4\n", "line 5 is"),
    (TABS + "1\tx\t3\t4\n", "line 4 is"),
    (TABS + "1_0\t2\t3\t4\n", "line 4 is '1_0"),
    (TABS + "１\t2\t3\t4\n", "line 4 is"),
    (TABS + "1\t2\t1e300\t4\n", "line 4 is .* a finite rating"),
    (TABS + "18446744073709551615\t2\t3\t4\n", "has an id beyond 64 bits"),
    (TABS + "9007199254740993.0\t2\t3\t4\n", "has an id beyond 64 bits, or of more than digits"),
]


@pytest.mark.parametrize(("text", "problem"), BAD_RATINGS)
def test_bad_ratings_are_one_sentence_with_the_path(tmp_path: Path, text: str | bytes, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=problem) as found:
        read_ratings(path)
    assert str(found.value).startswith(f"data.path: {path} ")
    assert "\n" not in str(found.value)


def test_files_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"^data.path: none.csv does not exist in {tmp_path}$"):
        read_ratings("none.csv")
    with pytest.raises(InputError, match="is a folder, expected a file"):
        read_npz(str(tmp_path))


def test_too_few_items_for_the_slices(tmp_path: Path) -> None:
    path = write(tmp_path, CSV)
    with pytest.raises(
        InputError, match="has 3 training items, expected at least one for each of the 4 slices"
    ):
        load_split(Settings({"path": path}, slices=4))
    with pytest.raises(InputError, match=r"digits has 1438 training items, .* 2048 slices"):
        load_labelled(Settings({"kind": "digits"}, slices=2048))


WRONG_SECTIONS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "rating"}, "data.kind: found 'rating', did you mean ratings"),
    ({"kind": 3}, "data.kind: found 3"),
    ({"kind": "ratings"}, "data.path: missing"),
    ({"kind": "made", "path": "x"}, "data.path: unknown key"),
    ({"kind": "made", "users": 0}, "data.users: found 0, expected at least 1"),
    ({"path": "x", "test_fraction": 1.0}, "data.test_fraction: found 1.0, expected less than 1"),
]


@pytest.mark.parametrize(("section", "problem"), WRONG_SECTIONS)
def test_wrong_settings_name_their_key(section: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_split(Settings(section))


@EXAMPLES
@given(st.integers(1, 300), st.floats(0, 0.99), st.integers(0, 5), st.integers(1, 16))
def test_every_item_is_in_one_split_and_every_training_item_in_one_slice(
    count: int, fraction: float, seed: int, slices: int
) -> None:
    job = Settings(seed=seed, slices=slices)
    train, test = random_split(count, fraction, job)
    assert sorted([*train, *test]) == list(range(count))
    assert len(test) == round(fraction * count)
    again = random_split(count, fraction, Settings(seed=seed, slices=1))
    assert np.array_equal(again[0], train)
    shares = [range(count)[share_of(count, index, job)] for index in range(slices)]
    assert [i for share in shares for i in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@EXAMPLES
@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.floats(0, 0.99), st.integers(0, 5))
def test_a_stratified_split_takes_the_same_fraction_of_each_label(
    labels: list[int], fraction: float, seed: int
) -> None:
    of = np.array(labels)
    train, test = stratified_split(of, fraction, Settings(seed=seed))
    assert sorted([*train, *test]) == list(range(len(of)))
    for label in set(labels):
        count = labels.count(label)
        assert (of[test] == label).sum() == min(round(fraction * count), count - 1)


def test_made_ratings_have_the_signal_and_the_noise_they_say() -> None:
    job = Settings({"kind": "made", "users": 50, "items": 60, "ratings": 40_000, "noise": 0.3}, seed=4)
    ratings = load_split(job).ratings
    assert (ratings.users.max(), ratings.items.max()) == (49, 59)
    pair = ratings.users.astype(np.int64) * 60 + ratings.items
    _, first, inverse = np.unique(pair, return_index=True, return_inverse=True)
    again = np.ones(len(pair), bool)
    again[first] = False
    # Two ratings of one pair differ by their noise alone.
    differences = (ratings.values - ratings.values[first][inverse])[again]
    assert differences.std() == pytest.approx(0.3 * np.sqrt(2), rel=0.1)
    assert np.array_equal(load_split(job).ratings.values, ratings.values)
    assert not np.array_equal(load_split(Settings(job.data, seed=5)).ratings.values, ratings.values)


def save(folder: Path, **arrays: Any) -> str:
    path = folder / "items.npz"
    np.savez(path, **arrays)
    return str(path)


IMAGES = np.arange(10 * 2 * 3, dtype=np.uint8).reshape(10, 2, 3)
LABELS = np.arange(10) % 2 + 5


@pytest.mark.parametrize("names", [("x", "y"), ("X", "y"), ("images", "labels"), ("x_train", "y_train")])
def test_npz_without_test_items_is_split_by_seed(tmp_path: Path, names: tuple[str, str]) -> None:
    path = save(tmp_path, **{names[0]: IMAGES, names[1]: LABELS[:, None]})
    data = load_labelled(Settings({"path": path, "test_fraction": 0.4}))
    assert (len(data.train_items), len(data.test_items), data.features) == (6, 4, 6)
    assert data.labels == (5, 6)
    assert sorted([*data.train_items[:, 0], *data.test_items[:, 0]]) == list(range(0, 60, 6))
    # Bytes become 0 .. 1.
    assert np.array_equal(data.scaled(IMAGES.reshape(10, 6)), IMAGES.reshape(10, 6).astype(np.float32) / 255)
    assert np.array_equal(data.train_labels, (data.train_items[:, 0] // 6) % 2)


def test_npz_with_its_own_test_items_keeps_them(tmp_path: Path) -> None:
    path = save(tmp_path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:3], y_test=LABELS[:3], other=1)
    data = load_labelled(Settings({"path": path, "standardize": True}))
    assert np.array_equal(data.test_items, IMAGES[:3].reshape(3, 6))
    assert data.split == "the file's own"
    features = data.scaled(data.train_items)
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(features.std(axis=0), 1, atol=1e-6)


@pytest.mark.parametrize("load", [load_labelled, load_points])
def test_bytes_beside_items_that_were_scaled_already_are_refused(
    load: Callable[[Settings], Any], tmp_path: Path
) -> None:
    images = np.array([[0, 255], [51, 102]], np.uint8)
    arrays = {"x_train": images, "y_train": np.arange(2), "x_test": images / 255, "y_test": np.arange(2)}
    path = save(tmp_path, **arrays)
    with pytest.raises(
        InputError, match="items of dtype uint8 and test items of dtype float64, expected bytes"
    ):
        load(Settings({"path": path}))
    load(Settings({"path": path, "standardize": True}))
    load(Settings({"path": save(tmp_path, **{**arrays, "x_test": images})}))


@pytest.mark.parametrize("kind", [np.float64, np.int64, np.int32])
def test_features_far_from_zero_are_standardized_before_they_are_rounded(tmp_path: Path, kind: type) -> None:
    # As times in seconds, of which float32 has one in two minutes.
    items = (1.7e9 + np.random.default_rng(0).normal(0, 30, (100, 2))).astype(kind)
    data = load_labelled(
        Settings({"path": save(tmp_path, x=items, y=np.arange(100) % 2), "standardize": True})
    )
    train = data.train_items.astype("f8")
    expected = (train - train.mean(axis=0)) / train.std(axis=0)
    found = data.scaled(data.train_items)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_constant_feature_becomes_0_though_its_mean_is_rounded(tmp_path: Path) -> None:
    items = np.stack([np.full(1000, 0.1), np.arange(1000) * 1.0], axis=1)
    assert items[:, 0].std() > 0, "by rounding"
    test = np.array([[0.2, 0.0]])
    path = save(tmp_path, x_train=items, y_train=np.arange(1000) % 2, x_test=test, y_test=np.zeros(1, int))
    data = load_labelled(Settings({"path": path, "standardize": True}))
    assert not data.scaled(data.train_items)[:, 0].any()
    assert data.scaled(data.test_items)[0, 0] == pytest.approx(0.1)


BAD_ARRAYS: list[tuple[dict[str, Any], str]] = [
    ({"a": IMAGES}, "has the arrays a, expected a pair of x_train, y_train; "),
    ({}, "has the arrays none"),
    ({"x": IMAGES, "y": LABELS[:9]}, r"y has shape \(9,\), expected \(10,\)"),
    ({"x": IMAGES, "y": np.eye(10)}, r"y has shape \(10, 10\)"),
    ({"x": IMAGES, "y": LABELS + 0.5}, "y has dtype float64, expected whole numbers"),
    ({"x": IMAGES, "y": np.full(10, np.nan)}, "expected whole numbers"),
    ({"x": IMAGES, "y": np.array(list("abcdefghij"))}, "expected whole numbers"),
    (
        {"x": IMAGES, "y": np.where(LABELS == 5, np.inf, LABELS)},
        "y has the label inf, expected whole numbers of",
    ),
    ({"x": IMAGES, "y": np.where(LABELS == 5, 1e30, LABELS)}, r"y has the label 1e\+30"),
    ({"x": IMAGES, "y": np.full(10, 2**63, np.uint64)}, "expected whole numbers of 64 bits"),
    ({"x": IMAGES * -1e300, "y": LABELS}, r"x has a value of 5.9e\+301, expected at most 3.4e\+38"),
    ({"x": IMAGES[:0], "y": LABELS[:0]}, r"x is empty, its shape is \(0, 2, 3\)"),
    ({"x": IMAGES.astype("U"), "y": LABELS}, "expected numbers of shape"),
    ({"x": np.arange(10), "y": LABELS}, "expected numbers of shape"),
    ({"x": np.where(IMAGES == 8, np.nan, IMAGES), "y": LABELS}, "item 1 of x has NaN or infinity"),
    ({"x": IMAGES.astype(object), "y": LABELS}, "pickled objects, which are never read"),
    ({"x": IMAGES, "y": LABELS * 0}, "only the label 0, expected at least two"),
    (
        {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES, "y_test": LABELS + 1},
        "the test label 7, which no training item has",
    ),
    (
        {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:, :1], "y_test": LABELS},
        "x_train has 6 features an item and x_test 3",
    ),
]


@pytest.mark.parametrize(("arrays", "problem"), BAD_ARRAYS)
def test_bad_arrays_are_one_sentence_with_the_path(
    tmp_path: Path, arrays: dict[str, Any], problem: str
) -> None:
    path = save(tmp_path, **arrays)
    with pytest.raises(InputError, match=problem) as found:
        load_labelled(Settings({"path": path}))
    assert path in str(found.value)
    assert "\n" not in str(found.value)


def test_numbers_of_16_bits_are_read_without_a_warning(tmp_path: Path) -> None:
    items = np.array([[-65504, 1e-7], [0.5, 2]], np.float16)
    np.savez(tmp_path / "half.npz", x=items, y=np.array([0, 1], np.float16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (found, labels), _ = read_npz(str(tmp_path / "half.npz"))
    assert (found.tolist(), labels.tolist()) == (items.tolist(), [0, 1])


def test_a_member_of_a_zip_file_that_is_no_array_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x", "text")
        archive.writestr("y", "text")
    with pytest.raises(InputError, match=r"data.npz: x has shape \(\) and dtype"):
        read_npz(str(tmp_path / "data.npz"))


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    whole = Path(save(tmp_path, x=IMAGES, y=LABELS)).read_bytes()
    np.save(tmp_path / "one.npy", IMAGES)
    single = (tmp_path / "one.npy").read_bytes()
    for content in (CSV.encode(), whole[:100], whole[:-30], single, b"\x80\x04\x95", b"\x93NUMPY"):
        path = write(tmp_path, content)
        with pytest.raises(InputError, match=r"expected an .npz file of numpy arrays") as found:
            load_labelled(Settings({"path": path}))
        assert str(found.value).startswith(f"data.path: {path} ")
        assert "\n" not in str(found.value)


def test_digits_are_there_and_split_by_seed() -> None:
    data = load_labelled(Settings(seed=1))
    assert (len(data.train_items), len(data.test_items), data.features) == (1438, 359, 64)
    assert data.labels == tuple(range(10))
    assert data.scaled(data.train_items).max() == 1.0
    other = load_labelled(Settings(seed=2))
    assert not np.array_equal(other.test_items, data.test_items)
