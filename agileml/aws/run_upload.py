"""The folder of a run on EC2, copied to the stack's bucket: the head that it lies on goes with `proteus aws down`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agileml.checkpoints.errors import CheckpointError
from agileml.checkpoints.format import CHUNK_BYTES
from agileml.checkpoints.s3 import S3Store
from bidbrain.aws.calls import errors
from bidbrain.aws.clients import Aws, Clients
from bidbrain.aws.site import Site
from bidbrain.aws.stack.names import names_of
from bidbrain.live.cloud import CloudError


def keep_run(folder: Path, site: Site, aws: Clients | None = None) -> tuple[bool, str]:
    """Copy every file to s3://BUCKET/proteus/NAME/runs/FOLDER; (whether it worked, the place or the reason)."""
    try:
        with errors("whose the stack is"):
            account = (aws or Aws(site.region)).client("sts").get_caller_identity()["Account"]
        names = names_of(site, str(account))
        store = S3Store(names.bucket, f"{names.prefix}runs/{folder.name}")
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                size_bytes = path.stat().st_size
                store.put(str(path.relative_to(folder)), _chunks(path, size_bytes), size_bytes)
    except (CloudError, CheckpointError, OSError) as error:
        return False, f"{folder} could not be copied to S3: {error}"
    return True, store.where


def _chunks(path: Path, size_bytes: int) -> Iterator[bytes]:
    """A file as long as it was when it was measured: who logs into the folder may add to it. Raises OSError."""
    left_bytes = size_bytes
    with path.open("rb") as file:
        while left_bytes and (chunk := file.read(min(CHUNK_BYTES, left_bytes))):
            left_bytes -= len(chunk)
            yield chunk
    if left_bytes:
        raise OSError(f"{path} became shorter meanwhile")
