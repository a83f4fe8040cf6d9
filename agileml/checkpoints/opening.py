"""Opens the store that a location names: a folder or a bucket of S3."""

from __future__ import annotations

from pathlib import Path

from agileml.checkpoints.errors import StoreError
from agileml.checkpoints.store import CheckpointStore, FolderStore
from agileml.config.checkpoint_location import FolderLocation, location


def open_store(path: str, base: Path | None = None) -> CheckpointStore:
    """The store that `path` names; relative folders start from `base`. Raises ValueError (see `location`), StoreError.

    This neither reads nor creates anything; `probe` and the first `put` do.
    """
    found = location(path)
    if isinstance(found, FolderLocation):
        try:
            folder = Path(found.path).expanduser()
        except RuntimeError:  # this computer has no such user
            raise StoreError(f"{path} names a home folder that is not known here") from None
        return FolderStore(folder if base is None else base / folder)
    from agileml.checkpoints.s3 import S3Store  # boto3 takes half a second to load

    return S3Store(found.bucket, found.prefix)
