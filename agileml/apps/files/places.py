"""Files by name, size and version, wherever they lie."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class DataFile:
    """A file that is read. url: an address, or a path of this machine. version: changes with its content."""

    url: str
    bytes: int
    version: str

    @property
    def is_far(self) -> bool:
        """It lies at an address, not on this machine's disk."""
        return is_address(self.url)

    @property
    def name(self) -> str:
        """The last part of its address or path."""
        return self.url.rpartition("/")[2]


class Files(Protocol):
    """A service that has files. Its methods raise InputError."""

    def one(self, url: str) -> DataFile:
        """The file of this name."""

    def matching(self, pattern: str) -> list[DataFile]:
        """The files whose names match a pattern with `*`, `?`, `[...]` or `**`; none that are empty."""

    def tail(self, file: DataFile, count: int) -> bytes:
        """The last bytes of a file, all if it has fewer."""

    def download(self, file: DataFile, to: Path) -> bool:
        """Write the file to a path; False if it is another now."""


def is_address(path: str) -> bool:
    """`scheme://...`, and no path of this machine."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is not None


def beginning(pattern: str) -> str:
    """The part of a pattern before its first wild character."""
    return WILD.split(pattern, maxsplit=1)[0]


def matches(name: str, pattern: str) -> bool:
    """A pattern's `*` stands for anything but a slash, and `**` for anything."""
    return _compiled(pattern).fullmatch(name) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    from fsspec.utils import glob_translate

    return re.compile(glob_translate(pattern))
