"""Objects of S3, by boto3: credentials, region and endpoint come from AWS' own settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from agileml.application import InputError
from agileml.apps.files.places import DataFile, beginning, matches
from agileml.config.checkpoint_location import S3Location, location

ATTEMPTS = 8


class S3Files:
    """Objects as files. Its methods raise InputError."""

    def one(self, url: str) -> DataFile:
        """The object of s3://bucket/key. Its content is known by its ETag."""
        place = _place(url)
        with _explained(url):
            about = self._client.head_object(Bucket=place.bucket, Key=place.prefix)
        if about["ContentLength"] == 0:
            raise InputError(f"data.path: {url} is empty (0 bytes)")
        return DataFile(url, int(about["ContentLength"]), str(about["ETag"]))

    def matching(self, pattern: str) -> list[DataFile]:
        """The objects of s3://bucket/pattern, whose `*` stands for anything but a slash, and `**` for anything."""
        place, found = _place(pattern), []
        with _explained(pattern):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=place.bucket, Prefix=beginning(place.prefix)
            )
            for page in pages:
                for entry in page.get("Contents", ()):
                    if matches(entry["Key"], place.prefix) and entry["Size"]:
                        url = f"s3://{place.bucket}/{entry['Key']}"
                        found.append(DataFile(url, int(entry["Size"]), str(entry["ETag"])))
        return found

    def tail(self, file: DataFile, count: int) -> bytes:
        """Its last bytes."""
        place = _place(file.url)
        with _explained(file.url):
            answer = self._client.get_object(
                Bucket=place.bucket, Key=place.prefix, Range=f"bytes=-{count}", IfMatch=file.version
            )
            return bytes(answer["Body"].read())

    def download(self, file: DataFile, to: Path) -> bool:
        """False if the object is another now. A broken download goes on where it broke."""
        from agileml.checkpoints.s3 import S3Store

        place = _place(file.url)
        with _explained(file.url), to.open("wb") as target:
            for chunk in S3Store(place.bucket, "").get(place.prefix):
                target.write(chunk)
            return self.one(file.url).version == file.version

    @cached_property
    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=5, read_timeout=30, retries={"mode": "standard", "total_max_attempts": ATTEMPTS}
        )
        session: Any = boto3.session.Session()
        return session.client("s3", config=config)


def _place(url: str) -> S3Location:
    try:
        place = location(url)
    except ValueError as error:
        raise InputError(f"data.path: {error}") from None
    assert isinstance(place, S3Location)
    if not place.prefix:
        raise InputError(f"data.path: {url} names a bucket, expected s3://bucket/key of a file")
    return place


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
        if code in ("412", "PreconditionFailed"):
            raise InputError(f"data.path: {url} was replaced, expected a file that stays") from None
        raise InputError(f"data.path: {url} cannot be read ({code})") from None
    except (BotoCoreError, Boto3Error, CheckpointError, OSError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"data.path: {url} cannot be read ({why})") from None
