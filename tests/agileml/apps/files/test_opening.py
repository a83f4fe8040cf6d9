"""Which files a path names, on this machine and by fsspec."""

from copy import copy
from pathlib import Path

import fsspec
import pytest

from agileml.application import InputError
from agileml.apps.data import data_file
from agileml.apps.files.cache import FileCache
from agileml.apps.files.opening import data_files, files_of, held_file, tails
from agileml.apps.files.places import DataFile


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train" / "deep").mkdir(parents=True)
    for name in ("b.parquet", "a.parquet", "deep/c.parquet", "notes.txt"):
        (tmp_path / "train" / name).write_bytes(name.encode())
    (tmp_path / "train" / "empty.parquet").touch()
    return tmp_path


def names(*paths: str) -> list[str]:
    return [file.name for file in data_files(list(paths), ".parquet")]


def test_folders_patterns_and_lists_name_files_in_a_fixed_order(folder: Path) -> None:
    assert names("train") == names("train/") == names("train/*.parquet") == ["a.parquet", "b.parquet"]
    assert names("train/**/*.parquet") == ["a.parquet", "b.parquet", "c.parquet"]
    assert names("train/b.parquet", "train/[ac].parquet") == ["b.parquet", "a.parquet"]


def test_a_folder_and_a_file_may_have_brackets_in_their_names(folder: Path) -> None:
    odd = (folder / "train").rename(folder / "train [v2]*")
    assert names(str(odd)) == names("train [v2]*/") == ["a.parquet", "b.parquet"]
    (odd / "b.parquet").rename(odd / "[b].parquet")
    assert names("train [v2]*/[b].parquet") == ["[b].parquet"]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("https://b.example/a.npz?X-Sig=5e&t=1 is empty", "https://b.example/a.npz?... is empty"),
        ("403, url='HTTPS://me:pw@b.example/a?sig=5e', so", "403, url='HTTPS://...@b.example/a?...', so"),
        ("s3://b/part-?.parquet, http://b.example:80/a@2", "s3://b/part-?.parquet, http://b.example:80/a@2"),
    ],
)
def test_an_error_shows_no_signature_nor_password_of_an_address(said: str, shown: str) -> None:
    assert str(InputError(said)) == str(copy(InputError(said))) == shown


def test_fsspec_names_the_same_files_and_fetches_them_once(folder: Path) -> None:
    system = fsspec.filesystem("memory")
    for file in (folder / "train").rglob("*.parquet"):
        system.pipe_file(f"/bucket/{file.relative_to(folder)}", file.read_bytes())
    found = data_files("memory://bucket/train/*.parquet", ".parquet")
    assert [file.name for file in found] == ["a.parquet", "b.parquet"]
    assert tails(found, 8) == [b".parquet", b".parquet"] and tails(found, 100)[0] == b"a.parquet"
    for _ in range(2):
        held = held_file(found[0], FileCache())
        assert held is not None and held.path.read_bytes() == b"a.parquet"
        held.close()
    system.pipe_file("/bucket/train/a.parquet", b"another")
    again = DataFile(found[0].url, found[0].bytes, "not in the cache")
    assert held_file(again, FileCache()) is None
    assert data_file("memory://bucket/train/a.parquet").read_bytes() == b"another"


@pytest.mark.parametrize(
    "address",
    [
        *("memory://bucket/one/", "memory://bucket/.one", "memory://bucket/.lock"),
        "memory://bucket/one?X-Amz-Signature=" + 300 * "0",
    ],
)
def test_an_address_may_end_in_what_no_file_here_can_be_called(address: str, tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file(address.removeprefix("memory:/").rstrip("/"), b"content")
    held = held_file(files_of(address).one(address), FileCache(tmp_path / "cache"))
    assert held is not None and held.path.read_bytes() == b"content"
    held.close()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("train/none.parquet", "train/none.parquet does not exist in "),
        ("train/*.csv", "train/*.csv has no files, expected one or more like *.parquet"),
        ("train/empty.parquet", "is empty (0 bytes)"),
        ("memory://bucket/none.parquet", "memory://bucket/none.parquet does not exist"),
        ("memory://bucket/none/*.parquet", "has no files, expected one or more like *.parquet"),
        ("nosuch://bucket/x.parquet", "nosuch://bucket/x.parquet cannot be read (Protocol not known: nosuch"),
    ],
)
def test_a_path_that_names_nothing_is_one_sentence(folder: Path, path: str, said: str) -> None:
    with pytest.raises(InputError, match=r"^data\.path: ") as caught:
        data_files(path, ".parquet")
    assert said in str(caught.value) and "\n" not in str(caught.value)
