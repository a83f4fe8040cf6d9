"""supervision.json in the folder of a supervised run: the process that supervises it, and the number of restarts.

The file outlives the processes and the host, so that the same command, given again after a power failure, goes on with
the run.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agileml.events.run import Process

SUPERVISION = "supervision.json"
LOCK = ".supervision.lock"  # in the folder too, while a supervisor lives
VERSION = 1


@dataclass(frozen=True)
class Restart:
    """The run began again at `at_unix_s`, because of `cause`, from the checkpoint of `clock` (0: from its start)."""

    at_unix_s: float
    cause: str
    clock: int


@dataclass(frozen=True)
class Supervision:
    """`process`: the supervisor. `most`: restarts in a row without a newer checkpoint. `is_over`: there is a result, or
    an error that a restart would not cure."""

    process: Process
    most: int
    restarts: tuple[Restart, ...] = ()
    is_over: bool = False

    def to_text(self) -> str:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Supervision:
        """Raises ValueError for other text."""
        try:
            values: Mapping[str, Any] = json.loads(text)
            if values["version"] != VERSION:
                raise ValueError(f"found version {values['version']}, expected {VERSION}")
            restarts = tuple(Restart(**each) for each in values["restarts"])
            process = Process(**values["process"])
            return cls(process, int(values["most"]), restarts, bool(values["is_over"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"found no {error}, expected the record of a supervised run") from None


def read_supervision(folder: Path) -> Supervision | None:
    """The record of a folder; None where there is none. Raises ValueError, OSError."""
    try:
        return Supervision.from_text((folder / SUPERVISION).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def was_restarted(folder: Path) -> bool:
    """Whether the run in a folder goes on in another process than it began in. Raises ValueError, OSError."""
    supervision = read_supervision(folder)
    return supervision is not None and bool(supervision.restarts)


@contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """Be the only supervisor in a folder. Yields False where another one lives, perhaps on another host that shares the
    folder. Where there can be no locks, nobody can tell.
    """
    path = folder / LOCK
    while True:
        is_alone = True
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            yield True
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_alone = False
        except OSError:  # a file system without locks
            pass
        if _is_at(path, file):
            break
        os.close(file)  # its holder has ended meanwhile and removed it
    try:
        yield is_alone
    finally:
        with suppress(OSError):
            if is_alone and _is_at(path, file):
                path.unlink()
        os.close(file)


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False
