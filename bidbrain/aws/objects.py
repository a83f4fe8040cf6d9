"""Small objects below a prefix of a bucket: what `live.keeping` keeps, where a stack has its bucket."""

from __future__ import annotations

from typing import Any

from bidbrain.aws.calls import errors


class BucketObjects:
    """Objects below `s3://bucket/prefix/`; an upload appears when it is whole. s3: a client."""

    def __init__(self, s3: Any, bucket: str, prefix: str) -> None:
        self._s3, self._bucket, self._prefix = s3, bucket, f"{prefix.strip('/')}/"

    def names(self) -> list[str]:
        """Names below the prefix. Raises CloudError."""
        found: list[str] = []
        with errors(f"s3://{self._bucket}/{self._prefix}"):
            pages = self._s3.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            for page in pages:
                found += [each["Key"][len(self._prefix) :] for each in page.get("Contents", ())]
        return found

    def get(self, name: str) -> bytes:
        """An object's content. Raises CloudError."""
        with errors(f"s3://{self._bucket}/{self._prefix}{name}"):
            answer = self._s3.get_object(Bucket=self._bucket, Key=self._prefix + name)
            return bytes(answer["Body"].read())

    def put(self, name: str, data: bytes) -> None:
        """Write an object whole. Raises CloudError."""
        with errors(f"s3://{self._bucket}/{self._prefix}{name}"):
            self._s3.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)
