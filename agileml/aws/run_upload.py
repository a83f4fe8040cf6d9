"""The folder of a run on EC2, copied to the stack's bucket: the head that it lies on goes with `proteus aws down`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from agileml.checkpoints.errors import CheckpointError
from agileml.checkpoints.format import CHUNK_BYTES
from agileml.checkpoints.s3 import S3Store
from agileml.cluster.submission import RESULTS
from agileml.events.run import RunStarted
from agileml.events.schema import SchemaError, to_line
from agileml.runs.event_log import EVENTS, read_first
from bidbrain.aws.calls import errors
from bidbrain.aws.clients import Aws, Clients
from bidbrain.aws.site import Site
from bidbrain.aws.stack.names import Names, names_of
from bidbrain.live.cloud import CloudError

STARTED = "started.json"  # of a copy: the event that the run began with, by which it is told from others


def keep_run(folder: Path, site: Site, aws: Clients | None = None) -> tuple[bool, str]:
    """Copy every file to s3://BUCKET/proteus/NAME/runs/FOLDER; (whether it worked, the place or the reason).

    Where the copy of another run lies there, as one of an earlier head, to FOLDER-2, FOLDER-3 ...
    """
    try:
        with errors("whose the stack is"):
            account = (aws or Aws(site.region)).client("sts").get_caller_identity()["Account"]
        names = names_of(site, str(account))
        started = _started(folder)
        store = _place(names, _name(folder), started)
        if started:
            store.put(STARTED, [started], len(started))
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                size_bytes = path.stat().st_size
                store.put(str(path.relative_to(folder)), _chunks(path, size_bytes), size_bytes)
    except (CloudError, CheckpointError, OSError) as error:
        return False, f"{folder} could not be copied to S3: {error}"
    return True, store.where


def _name(folder: Path) -> str:
    """As below the results of submitted jobs, where two runs may have folders of one name in two others."""
    folder, results = folder.resolve(), (Path.home() / RESULTS).resolve()
    return folder.relative_to(results).as_posix() if results in folder.parents else folder.name


def _started(folder: Path) -> bytes:
    """Bytes that tell this run from all others; empty where there is no log of it."""
    try:
        first = read_first(folder / EVENTS, 8)
    except (OSError, SchemaError):
        return b""
    return next((to_line(each).encode() for each in first if isinstance(each.event, RunStarted)), b"")


def _place(names: Names, name: str, started: bytes) -> S3Store:
    """The first place that is free, or has an earlier copy of this run. Raises CheckpointError."""
    for number in count(1):
        store = S3Store(names.bucket, f"{names.prefix}runs/{name}{'' if number == 1 else f'-{number}'}")
        there = store.list("")
        if not started or not there or (STARTED in there and b"".join(store.get(STARTED)) == started):
            return store
    raise AssertionError


def _chunks(path: Path, size_bytes: int) -> Iterator[bytes]:
    """A file as long as it was when it was measured: who logs into the folder may add to it. Raises OSError."""
    left_bytes = size_bytes
    with path.open("rb") as file:
        while left_bytes and (chunk := file.read(min(CHUNK_BYTES, left_bytes))):
            left_bytes -= len(chunk)
            yield chunk
    if left_bytes:
        raise OSError(f"{path} became shorter meanwhile")
