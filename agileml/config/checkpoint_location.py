"""Places as a user writes them: of results, a folder; of checkpoints, a folder or `s3://bucket/prefix`.

An empty one, as of a variable that a shell does not have, is refused: `--out "$DIR"` would write into the working
folder.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class FolderLocation:
    """A folder; `~` is the home folder."""

    path: str


@dataclass(frozen=True)
class S3Location:
    """Objects of a bucket whose keys begin with `prefix` and a slash; an empty prefix is the whole bucket."""

    bucket: str
    prefix: str


def below_home(path: str | None) -> str | None:
    """A path with its `~` as the home folder of this computer: no shell sees what a config says. Raises ValueError."""
    if path is None:
        return None
    if not path.strip():
        raise ValueError("expected a path")
    return os.path.expanduser(path)


def location(text: str) -> FolderLocation | S3Location:
    """The location that `text` names. Raises ValueError: a sentence without any credentials."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
    if not text.strip() or "\0" in text:
        raise ValueError(f"found {text!r}, expected a folder or s3://bucket/prefix")
    if scheme is None:
        return FolderLocation(text)
    if scheme[1] != "s3":
        raise ValueError(f"found an address of {scheme[1]}, expected a folder or s3://bucket/prefix")
    bucket, _, rest = text[len("s3://") :].partition("/")
    if "@" in bucket or ":" in bucket:
        raise ValueError(
            "found an address with credentials or a port, expected s3://bucket/prefix: credentials and "
            "endpoints come from AWS' own settings"
        )
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
        raise ValueError(
            f"found the bucket {bucket!r}, expected 3 to 63 of a-z, 0-9, dot and dash as in s3://bucket/prefix"
        )
    return S3Location(bucket, "/".join(part for part in rest.split("/") if part))
