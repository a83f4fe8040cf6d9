"""Files of every other service that fsspec knows: gs://, abfs://, hf://, https:// and so on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agileml.application import InputError
from agileml.apps.files.places import DataFile

# Facts about a file that change with its content, as services name them; spelt in many ways, here without capitals.
CHANGING = {
    *("etag", "e_tag", "md5hash", "crc32c", "generation", "version", "sha256", "checksum", "blob_id"),
    *("last_modified", "lastmodified", "updated", "mtime", "modified", "created"),
}


class FsspecFiles:
    """Files by fsspec, whose own settings have the credentials. Its methods raise InputError."""

    def one(self, url: str) -> DataFile:
        with _explained(url):
            system, path = _opened(url)
            return _file(url, system.info(path))

    def matching(self, pattern: str) -> list[DataFile]:
        with _explained(pattern):
            system, path = _opened(pattern)
            found = system.glob(path, detail=True)
            names = [name for name, about in found.items() if about["type"] == "file" and about["size"]]
            # Listings say less about a file than `info`, whose facts are its version.
            return [_file(system.unstrip_protocol(name), system.info(name)) for name in names]

    def tail(self, file: DataFile, count: int) -> bytes:
        with _explained(file.url):
            system, path = _opened(file.url)
            return bytes(system.cat_file(path, start=max(0, file.bytes - count), end=file.bytes))

    def download(self, file: DataFile, to: Path) -> bool:
        with _explained(file.url):
            system, path = _opened(file.url)
            system.get_file(path, str(to))
            system.invalidate_cache()
            return self.one(file.url).version == file.version


def _opened(url: str) -> tuple[Any, str]:
    import fsspec.core

    return fsspec.core.url_to_fs(url)


def _file(url: str, about: dict[str, Any]) -> DataFile:
    size = about.get("size")
    if not size:
        raise InputError(
            f"data.path: {url} " + ("is empty (0 bytes)" if size == 0 else "is a folder, or has no size")
        )
    all_facts = sorted((key, str(value)) for key, value in about.items())
    facts = [("size", str(size)), *(fact for fact in all_facts if fact[0].lower() in CHANGING)]
    return DataFile(
        url, int(size), hashlib.sha256(str(facts if len(facts) > 1 else all_facts).encode()).hexdigest()[:16]
    )


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turns any error of a service's library into one sentence."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"data.path: {url} does not exist") from None
    except ImportError as error:
        raise InputError(f"data.path: {url} needs a package that is not installed here: {error}") from None
    except Exception as error:  # each service has exceptions of its own
        why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise InputError(f"data.path: {url} cannot be read ({why})") from error
