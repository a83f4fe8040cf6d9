"""Checkpoints as objects of an S3 bucket.

An object appears when its upload is complete, so there is no temporary name. Big parts go up in pieces, several at a
time, straight from the arrays. boto3 repeats a request that was throttled, met an error of the service or lost
its connection, after a random and growing pause; an upload that fails for good is aborted. A download that breaks in
the middle goes on where it broke. Credentials, region and endpoint come from AWS' own settings.
"""

from __future__ import annotations

import io
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from agileml.checkpoints.errors import CheckpointError, NotThereError, StoreError
from agileml.checkpoints.format import CHUNK_BYTES
from agileml.checkpoints.store import Bytes

_BUFFER_BYTES = 1 << 16
MOST_PIECES = 10_000  # of one multipart upload, by S3's rules


class S3Store:
    """Objects below `s3://bucket/prefix`. `attempts`: how often to try a request before it counts as failed."""

    def __init__(
        self, bucket: str, prefix: str, *, attempts: int = 8, piece_bytes: int = CHUNK_BYTES
    ) -> None:
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        self._attempts, self._piece_bytes = attempts, piece_bytes

    @property
    def where(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @cached_property
    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=5,
            read_timeout=30,
            retries={"mode": "standard", "total_max_attempts": self._attempts},
        )
        session = boto3.session.Session()
        try:
            client = session.client("s3", config=config)
            if _is_of_aws(client.meta.endpoint_url):
                return client
            # Other services refuse what boto3 sends of its own accord; manifests have checksums anyway.
            plain = Config(
                request_checksum_calculation="when_required", response_checksum_validation="when_required"
            )
            return session.client("s3", config=config.merge(plain))
        except ValueError as error:  # a malformed endpoint
            raise StoreError(f"{self.where} could not be reached: {error}") from error

    def put(self, name: str, chunks: Iterable[Bytes], size: int) -> None:
        from boto3.s3.transfer import TransferConfig

        transfer = TransferConfig(
            multipart_threshold=self._piece_bytes,
            multipart_chunksize=max(self._piece_bytes, -(-size // (MOST_PIECES - 1))),
            max_concurrency=4,
            preferred_transfer_client="classic",
        )
        content = _Reader(chunks)
        reader = io.BufferedReader(content, _BUFFER_BYTES)  # whose reads are never short
        with self._explained("written", name):
            self._client.upload_fileobj(reader, self._bucket, self._prefix + name, Config=transfer)
        assert content.position == size, (name, content.position, size)

    def get(self, name: str) -> Iterator[Bytes]:
        from botocore.exceptions import ConnectionError as LinkError
        from botocore.exceptions import HTTPClientError, IncompleteReadError
        from urllib3.exceptions import HTTPError  # as botocore leaves a TLS record that is broken

        position, failed = 0, 0
        version: dict[str, str] = {}
        with self._explained("read", name):
            while True:
                span = {"Range": f"bytes={position}-"} if position else {}
                answer = self._client.get_object(
                    Bucket=self._bucket, Key=self._prefix + name, **span, **version
                )
                version, end = {"IfMatch": answer["ETag"]}, position + answer["ContentLength"]
                try:
                    for chunk in answer["Body"].iter_chunks(CHUNK_BYTES):
                        yield chunk
                        position += len(chunk)
                        failed = 0  # a long download may break any number of times, as long as it goes on
                    return
                except (LinkError, HTTPClientError, IncompleteReadError, HTTPError):
                    if position == end:  # it broke behind the last byte, where there is nothing to ask for
                        return
                    failed += 1
                    if failed == self._attempts:
                        raise
                    time.sleep(random.uniform(0, min(2.0**failed, 20.0)))

    def list(self, prefix: str) -> dict[str, int]:
        found = {}
        with self._explained("listed", ""):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            for page in pages:
                for entry in page.get("Contents", ()):
                    found[entry["Key"][len(self._prefix) :]] = int(entry["Size"])
        return found

    def delete(self, name: str) -> None:
        with self._explained("removed", name):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def sweep(self, prefix: str, is_stale: Callable[[str], bool]) -> None:
        with self._explained("cleaned of broken uploads", ""):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            for page in pages:
                for upload in page.get("Uploads", ()):
                    if is_stale(upload["Key"][len(self._prefix) :]):
                        self._abort(upload["Key"], upload["UploadId"])

    def _abort(self, key: str, upload: str) -> None:
        from botocore.exceptions import ClientError

        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchUpload":  # the upload ended or was aborted meanwhile
                raise

    def probe(self) -> None:
        name = f"probe-{secrets.token_hex(8)}"
        self.put(name, [b"proteus"], 7)
        self.delete(name)

    @contextmanager
    def _explained(self, done: str, name: str) -> Iterator[None]:
        """Turn errors of boto3 into one sentence with the code and message of the service, without the request."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        try:
            yield
        except CheckpointError:
            raise
        except (ClientError, BotoCoreError, Boto3Error, HTTPError) as error:
            cause = error.__context__ if isinstance(error, Boto3Error) and error.__context__ else error
            code, why = _reason(cause)
            kind = NotThereError if code in ("NoSuchKey", "404") else StoreError
            raise kind(f"{self.where}/{name}".rstrip("/") + f" could not be {done}: {why}") from error


def _is_of_aws(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu"))


def _reason(error: BaseException) -> tuple[str, str]:
    from botocore.exceptions import ClientError

    if isinstance(error, ClientError):
        details = error.response.get("Error", {})
        return details.get("Code", ""), f"{details.get('Code', '')}: {details.get('Message', '')}".strip(
            ": ."
        )
    return "", " ".join(str(error).split()).rstrip(".")


class _Reader(io.RawIOBase):
    """Chunks as a file that is read once, front to back."""

    def __init__(self, chunks: Iterable[Bytes]) -> None:
        self._chunks = iter(chunks)
        self._left = memoryview(b"")
        self.position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill as much of `buffer` as one chunk can; 0 at the end."""
        while not len(self._left):
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk).cast("B")
        view = memoryview(buffer)
        count = min(len(view), len(self._left))
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        self.position += count
        return count
