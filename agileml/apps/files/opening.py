"""Which files a path names, and their content on this machine's disk."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agileml.application import InputError
from agileml.apps.files.cache import FileCache, HeldFile
from agileml.apps.files.fsspec_files import FsspecFiles
from agileml.apps.files.places import WILD, DataFile, Files, is_address
from agileml.apps.files.s3 import S3Files

AT_ONCE = 16  # ends of files that are asked for at a time
MOST_OF_A_NAME = 200  # bytes: a file system takes 255, and a presigned address has more


def fetched(url: str, cache: FileCache | None = None) -> HeldFile:
    """The file of an address, downloaded once to this machine, and again when it has changed. Raises InputError."""
    while True:
        if (held := held_file(files_of(url).one(url), cache or FileCache())) is not None:
            return held


def held_file(file: DataFile, cache: FileCache) -> HeldFile | None:
    """A file on this machine's disk: a remote file is downloaded through the cache; None if it has changed. Raises
    InputError."""
    if not file.is_far:
        path = Path(file.url)
        return HeldFile(path) if _local(path).version == file.version else None
    key = hashlib.sha256(f"{file.url} {file.version}".encode()).hexdigest()[:24]
    name = file.name.lstrip(".")  # an address may end with a slash or dots
    if not name or len(os.fsencode(name)) > MOST_OF_A_NAME:
        name = "data"
    try:
        return cache.held(file.url, key, name, file.bytes, lambda to: files_of(file.url).download(file, to))
    except OSError as error:
        raise InputError(f"data.path: {file.url} cannot be read ({error})") from None


def data_files(paths: str | Sequence[str], suffix: str) -> tuple[DataFile, ...]:
    """The files that a path, a folder, a pattern or a list of them names, by name within each. Raises InputError.

    suffix: of the files that are taken from a folder, such as ".parquet".
    """
    found: list[DataFile] = []
    for named in [paths] if isinstance(paths, str) else paths:
        path = named.removeprefix("file://")
        is_here = not is_address(path) and os.path.exists(path)
        pattern = glob.escape(path) if is_here else path  # a name may have brackets
        if path.endswith("/") or (is_here and os.path.isdir(path)):
            pattern = f"{pattern.rstrip('/')}/*{suffix}"
        these = sorted(_matching(pattern), key=lambda file: file.url)
        if not these:
            raise InputError(f"data.path: {path} has no files, expected one or more like *{suffix}")
        found += these
    if not found:
        raise InputError(f"data.path: found no path, expected a path or a list of them, like *{suffix}")
    return tuple(found)


def named_files(urls: Sequence[str]) -> list[DataFile]:
    """The files of these names, in their order. Raises InputError."""
    services = _services(url for url in urls if is_address(url))
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(lambda url: _named(url, services.get(_scheme(url))), urls))


def _named(url: str, service: Files | None = None) -> DataFile:
    return (service or files_of(url)).one(url) if is_address(url) else _local(Path(url))


def _matching(pattern: str) -> list[DataFile]:
    if not WILD.search(pattern):
        return [_named(pattern)]
    if is_address(pattern):
        return files_of(pattern).matching(pattern)
    names = [Path(name) for name in glob.glob(pattern, recursive=True)]
    return [_local(path) for path in names if path.is_file() and path.stat().st_size]


def tails(files: Sequence[DataFile], count: int) -> list[bytes]:
    """The last bytes of each file, all if it has fewer. Raises InputError."""
    far = [file for file in files if file.is_far]
    services = _services(file.url for file in far)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = threads.map(lambda file: services[_scheme(file.url)].tail(file, count), far)
        of_far = dict(zip(far, found, strict=True))
    return [of_far[file] if file.is_far else _tail(Path(file.url), count) for file in files]


def _tail(path: Path, count: int) -> bytes:
    with path.open("rb") as opened:
        opened.seek(-min(count, path.stat().st_size), os.SEEK_END)
        return opened.read(count)


def _local(path: Path) -> DataFile:
    """A local file, identified by its size alone, because copies on other machines have other modification times.
    Raises InputError."""
    check_file(path, str(path))
    size = path.stat().st_size
    return DataFile(str(path), size, str(size))


def check_file(file: Path, path: str) -> None:
    """Raise InputError unless a file can be read. path: as the user wrote it."""
    where = f"{path} does not exist" if file.is_absolute() else f"{path} does not exist in {Path.cwd()}"
    try:
        if not file.exists():
            raise InputError(f"data.path: {where}")
        size = file.stat().st_size
    except OSError as error:  # such as a folder on the way that this user may not enter
        raise InputError(f"data.path: {path} cannot be read ({error.strerror})") from None
    if not file.is_file():
        raise InputError(f"data.path: {path} is a folder, expected a file")
    if not os.access(file, os.R_OK):
        raise InputError(f"data.path: {path} may not be read by this user")
    if size == 0:
        raise InputError(f"data.path: {path} is empty (0 bytes)")


def files_of(url: str) -> Files:
    """The service of an address."""
    return S3Files() if url.lower().startswith("s3://") else FsspecFiles()


def _services(urls: Iterable[str]) -> dict[str, Files]:
    """One service for all addresses of a scheme: each has connections of its own."""
    found: dict[str, Files] = {}
    for url in urls:
        if _scheme(url) not in found:
            found[_scheme(url)] = files_of(url)
    return found


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()
