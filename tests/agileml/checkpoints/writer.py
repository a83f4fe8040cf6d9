"""Writes checkpoints until it is killed. Started by the tests; one process does the imports and forks the writers.

Every line of stdin is a writer's job: {"store": address, "keep", "partitions", "elements"}, and if wanted "lines": the
writer kills itself when it has run so many lines of the code under test, and "piece_bytes" of uploads. On stdout: `pid
N`, `done CLOCK` for every finished checkpoint, `ended STATUS`.
"""

import json
import os
import signal
import sys
from types import FrameType
from typing import Any

import boto3  # noqa: F401  before the fork, which is then quick

import agileml.checkpoints
from agileml.checkpoints.checkpoint import CheckpointStore, StoreError
from agileml.checkpoints.opening import open_store
from agileml.checkpoints.s3 import S3Store
from agileml.config.checkpoint_location import S3Location, location
from tests.agileml.checkpoints.rig import write_on

CODE = os.path.dirname(agileml.checkpoints.__file__)


def die_after(lines: int) -> None:
    """SIGKILL this process at a certain line of agileml/checkpoints."""
    left = lines

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def the_store(job: dict[str, Any]) -> CheckpointStore:
    where = location(job["store"])
    if isinstance(where, S3Location):
        return S3Store(where.bucket, where.prefix, piece_bytes=job["piece_bytes"])
    return open_store(job["store"])


def run(job: dict[str, Any]) -> None:
    store, parent = the_store(job), os.getppid()
    if "lines" in job:
        die_after(job["lines"])
    while True:
        try:
            for clock in write_on(store, job["keep"], job["partitions"], job["elements"]):
                os.write(1, f"done {clock}\n".encode())
                if os.getppid() != parent:  # the tests were killed themselves
                    return
        except StoreError as error:  # a training run goes on without this one
            os.write(2, f"{error}\n".encode())


def main() -> None:
    for line in sys.stdin:
        ready, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(ready, 1)  # until the line with its process id is out
            try:
                run(json.loads(line))
            finally:
                os._exit(1)
        os.write(1, f"pid {pid}\n".encode())
        os.write(go, b"!")
        os.close(ready)
        os.close(go)
        _, status = os.waitpid(pid, 0)
        os.write(1, f"ended {status}\n".encode())


if __name__ == "__main__":
    main()
