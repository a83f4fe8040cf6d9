"""Data that lies in S3: an object is downloaded once to this machine, and again when it has changed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agileml.application import InputError
from agileml.config.checkpoint_location import S3Location, location

ATTEMPTS = 8


def cache_folder() -> Path:
    """Where downloads are kept: `$XDG_CACHE_HOME/proteus/data`, or below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "proteus" / "data"


def fetched(url: str, cache: Path | None = None) -> Path:
    """The object of s3://bucket/key as a local file of the same name. Raises InputError.

    Its content is known by S3's ETag, so a changed object is another file; of many processes one downloads.
    """
    try:
        place = location(url)
    except ValueError as error:
        raise InputError(f"data.path: {error}") from None
    assert isinstance(place, S3Location)
    if not place.prefix:
        raise InputError(f"data.path: {url} names a bucket, expected s3://bucket/key of a file")
    with _explained(url):
        client = _client()
        while True:
            etag = _etag(client, place, url)
            named = hashlib.sha256(f"{url} {etag}".encode()).hexdigest()[:24]
            file = (cache or cache_folder()) / named / place.prefix.rpartition("/")[2]
            with _alone(file.parent):
                if file.exists() or _download(client, place, etag, url, file):
                    return file


def _etag(client: Any, place: S3Location, url: str) -> str:
    about = client.head_object(Bucket=place.bucket, Key=place.prefix)
    if about["ContentLength"] == 0:
        raise InputError(f"data.path: {url} is empty (0 bytes)")
    return str(about["ETag"])


def _download(client: Any, place: S3Location, etag: str, url: str, file: Path) -> bool:
    """Whole or not at all; False if the object was replaced meanwhile. A broken download goes on where it broke."""
    from agileml.checkpoints.s3 import S3Store

    descriptor, part = tempfile.mkstemp(dir=file.parent, suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as target:
            for chunk in S3Store(place.bucket, "").get(place.prefix):
                target.write(chunk)
        if _etag(client, place, url) != etag:
            return False
        Path(part).replace(file)
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(part).unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time; the kernel gives the lock back when it dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _client() -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=5, read_timeout=30, retries={"mode": "standard", "total_max_attempts": ATTEMPTS}
    )
    session: Any = boto3.session.Session()
    return session.client("s3", config=config)


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """An error of boto3 as one sentence."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    from agileml.checkpoints.errors import CheckpointError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in ("404", "NoSuchKey", "NoSuchBucket"):
            raise InputError(f"data.path: {url} does not exist") from None
        if code in ("403", "AccessDenied"):
            raise InputError(
                f"data.path: {url} may not be read with these credentials, or does not exist"
            ) from None
        raise InputError(f"data.path: {url} cannot be read ({code})") from None
    except (BotoCoreError, Boto3Error, CheckpointError, OSError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"data.path: {url} cannot be read ({why})") from None
