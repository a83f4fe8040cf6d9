"""The cache of files from afar: its bound, what it removes first, and what it never removes."""

import errno
import fcntl
import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from agileml.application import InputError
from agileml.apps.files.cache import FileCache, HeldFile


class Far:
    """Files of `size` bytes each; counts downloads."""

    def __init__(self, folder: Path, most_bytes: int, size: int = 100) -> None:
        self.cache, self.size = FileCache(folder, most_bytes), size
        self.downloads: list[str] = []

    def held(self, key: str) -> HeldFile:
        def download(to: Path) -> bool:
            self.downloads.append(key)
            to.write_bytes(key.encode() * self.size)
            return True

        found = self.cache.held(f"s3://b/{key}", key, "file", self.size, download)
        assert found is not None
        return found

    def read(self, key: str) -> None:
        with self.held(key) as path:
            assert path.read_bytes() == key.encode() * self.size


def files(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.rglob("file")}


def test_the_files_that_were_used_least_recently_go_first(tmp_path: Path) -> None:
    far = Far(tmp_path, 350)
    for key in "abcacd":
        far.read(key)
    assert far.downloads == ["a", "b", "c", "d"]
    assert files(tmp_path) == {"a", "c", "d"}
    far.read("b")
    assert files(tmp_path) == {"c", "d", "b"}


def test_a_file_that_is_read_stays(tmp_path: Path) -> None:
    far = Far(tmp_path, 150)
    with far.held("a") as path:
        far.read("b")
        assert path.read_bytes() == b"a" * 100
    far.read("c")
    assert files(tmp_path) == {"c"}


def test_a_file_may_be_asked_for_while_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that removes it found a folder that was not empty: another had made a lock for itself in it."""
    far, remove = Far(tmp_path, 150), os.rmdir

    def remove_late(folder: Path | str, **options: int | None) -> None:
        (tmp_path / "a" / ".lock").touch()
        assert files(tmp_path) == set()  # the other finds no half of it
        remove(folder, **options)

    far.read("a")
    monkeypatch.setattr(os, "rmdir", remove_late)
    far.read("b")
    assert files(tmp_path) == {"b"}


def test_a_file_that_is_larger_than_the_bound_is_one_sentence(tmp_path: Path) -> None:
    far = Far(tmp_path, 99)
    with pytest.raises(
        InputError, match=r"^data\.path: s3://b/a has 0\.00 GiB, expected at most the 0\.00 GiB"
    ):
        far.held("a")
    assert not files(tmp_path) and not list(tmp_path.rglob("*.part"))


def test_room_that_another_download_will_fill_is_not_taken_for_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(free=1000 - sum(file.stat().st_size for file in folder.rglob("file")))

    monkeypatch.setattr("agileml.apps.files.cache.shutil.disk_usage", disk)
    Far(tmp_path, 10_000, size=500).read("o")

    def download(to: Path) -> bool:
        Far(tmp_path, 10_000, size=300).read("a")  # another process, before this one has written anything
        to.write_bytes(b"b" * 400)
        return True

    held = FileCache(tmp_path, 10_000).held("s3://b/b", "b", "file", 400, download)
    assert held is not None
    held.close()
    assert files(tmp_path) == {"a", "b"}, "1,200 bytes do not fit"


def test_a_download_that_fails_leaves_nothing_and_another_version_is_none(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 1000)

    def fails(to: Path) -> bool:
        to.write_bytes(b"half")
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        cache.held("s3://b/a", "a", "file", 10, fails)
    assert cache.held("s3://b/a", "a", "file", 10, lambda to: to.write_bytes(b"x") == 0) is None
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".lock"] * 2


def _reads(folder: str, keys: str) -> None:
    far = Far(Path(folder), 250)
    for key in keys:
        far.read(key)
    os._exit(0)


def test_many_processes_share_it(tmp_path: Path) -> None:
    """Each reads whole files, whatever the others remove meanwhile."""
    context = multiprocessing.get_context("fork")
    orders = ["abcd" * 25, "dcba" * 25, "badc" * 25]
    processes = [context.Process(target=_reads, args=(str(tmp_path), keys)) for keys in orders]
    for each in processes:
        each.start()
    for each in processes:
        each.join(60)
    assert [each.exitcode for each in processes] == [0, 0, 0]
    far = Far(tmp_path, 250)
    far.read("z")
    assert len(files(tmp_path)) <= 2


def test_a_place_that_keeps_nothing_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a home folder that this user may not write to, one on a file system without locks, and none at all."""
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "cache"
    with pytest.raises(
        InputError, match=rf"go to {below}, expected a folder that can be written to \(Not a dir"
    ):
        Far(below, 1000).held("a")

    def flock(file: int, what: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(
        InputError, match=r"with locks \(Function not implemented\); XDG_CACHE_HOME names another"
    ):
        Far(tmp_path / "cache", 1000).held("a")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with pytest.raises(InputError, match=r"no home folder for files from afar; XDG_CACHE_HOME names"):
        FileCache().held("s3://b/a", "a", "file", 10, lambda to: True)
