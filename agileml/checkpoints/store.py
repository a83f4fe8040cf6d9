"""Stores for the files of checkpoints: the protocol, and a folder as the simplest store.

A name is a path relative to the store with `/` between its parts. A name shows either the whole new file or the one
before, never half a file, even if the writer is killed at any moment.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from agileml.checkpoints.errors import NotThereError, StoreError
from bidbrain.files.durable_names import flush_folder

Bytes = bytes | bytearray | memoryview
READ_BYTES = 1 << 20  # larger reads cost more in new pages than they save in calls
_TEMPORARY = re.compile(r"(.*/|)\.([^/]+)\.[0-9a-f]{16}\.tmp")


class CheckpointStore(Protocol):
    """Whole files by name. Any thread may call the methods; every method raises StoreError."""

    @property
    def where(self) -> str:
        """The address of the store, for people."""

    def put(self, name: str, chunks: Iterable[Bytes], size: int) -> None:
        """Write `chunks`, together `size` bytes, durably under a name; replaces an earlier file."""

    def get(self, name: str) -> Iterator[Bytes]:
        """The content in pieces of bounded size. Raises NotThereError."""

    def list(self, prefix: str) -> dict[str, int]:
        """Names that begin with `prefix`, and how many bytes each has."""

    def delete(self, name: str) -> None:
        """Remove a name; a missing one is no error."""

    def sweep(self, prefix: str, is_stale: Callable[[str], bool]) -> None:
        """Remove leftovers of killed writers, which `list` does not show, of the names that begin with `prefix` and
        that `is_stale` accepts."""

    def probe(self) -> None:
        """Write a small file and remove it. Raises StoreError if the store refuses it."""


class FolderStore:
    """Files below a folder. `put` writes to a temporary name, flushes to disk and renames."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def where(self) -> str:
        return str(self.folder)

    def put(self, name: str, chunks: Iterable[Bytes], size: int) -> None:
        path = self.folder / name
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            with _create(temporary) as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                assert file.tell() == size, (name, file.tell(), size)
                os.fsync(file.fileno())
            os.replace(temporary, path)
            flush_folder(path.parent)
        except OSError as error:
            raise StoreError(
                f"{path} could not be written: {error.strerror} ({_free(self.folder)}); "
                "earlier checkpoints are whole"
            ) from error
        finally:
            with suppress(OSError):  # it was renamed or never made, or the disk is read-only
                temporary.unlink()

    def get(self, name: str) -> Iterator[Bytes]:
        path = self.folder / name
        try:
            with path.open("rb", buffering=0) as file:
                while chunk := file.read(READ_BYTES):
                    yield chunk
        except FileNotFoundError as error:
            raise NotThereError(f"{path} is not there") from error
        except OSError as error:
            raise StoreError(f"{path} could not be read: {error.strerror}") from error

    def list(self, prefix: str) -> dict[str, int]:
        return {
            name: size
            for name, size in self._files(prefix)
            if name.startswith(prefix) and not _TEMPORARY.fullmatch(name)
        }

    def delete(self, name: str) -> None:
        path = self.folder / name
        try:
            path.unlink(missing_ok=True)
            if path.parent != self.folder:
                with suppress(OSError):  # not empty: files of others, or files to come
                    path.parent.rmdir()
        except OSError as error:
            raise StoreError(f"{path} could not be removed: {error.strerror}") from error

    def sweep(self, prefix: str, is_stale: Callable[[str], bool]) -> None:
        for name, _ in list(self._files(prefix)):
            if (temporary := _TEMPORARY.fullmatch(name)) and is_stale(temporary[1] + temporary[2]):
                self.delete(name)

    def probe(self) -> None:
        name = f"probe-{secrets.token_hex(8)}"
        self.put(name, [b"proteus"], 7)
        self.delete(name)

    def _files(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Names and sizes of the regular files in the folder and in those of its folders that begin with `prefix`.

        Others may be closed to us, as the `lost+found` of a disk.
        """
        try:
            with os.scandir(self.folder) as entries:
                folders = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
                below = sorted(name for name in folders if name.startswith(prefix))
            for folder in ["", *below]:
                with suppress(FileNotFoundError), os.scandir(self.folder / folder) as entries:
                    for entry in entries:
                        with suppress(FileNotFoundError):  # deleted meanwhile
                            if entry.is_file(follow_symlinks=False):
                                yield f"{folder}/{entry.name}".lstrip("/"), entry.stat().st_size
        except FileNotFoundError:
            return  # the first put makes the folder
        except OSError as error:
            raise StoreError(f"{error.filename} could not be read: {error.strerror}") from error


def _create(path: Path) -> BinaryIO:
    for _ in range(10):  # a process that deletes an older checkpoint removes empty folders
        _make_folder(path.parent)
        with suppress(FileNotFoundError):
            return path.open("xb")
    raise FileNotFoundError(errno.ENOENT, "its folder was removed again and again", str(path.parent))


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir()
    flush_folder(folder.parent)


def _free(folder: Path) -> str:
    # Unlike `Path.exists` this takes a name that is too long, or in a folder that may not be entered, for none.
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))
    try:
        return f"{shutil.disk_usage(there).free / 2**20:.1f} MiB free"
    except OSError as error:
        return f"free space unknown: {error.strerror}"
