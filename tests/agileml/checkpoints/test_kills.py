"""Writers of checkpoints killed at any point: a whole one is always there, never older than the last finished."""

import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agileml.checkpoints.checkpoint import Check, CheckpointStore, Condition, prune, survey
from agileml.checkpoints.opening import open_store
from agileml.core.protocol.view import CutId
from tests.agileml.checkpoints.rig import Writers, newest_read, write, writers

JOB = {"keep": 2, "partitions": 2, "elements": 1000}
KILLS = 20


@pytest.fixture(scope="module")
def started() -> Iterator[Writers]:
    with writers() as found:
        yield found


def after_kill(store: CheckpointStore, finished: int, elements: int = 1000) -> int:
    """What every reader must find; returns the clock of the newest."""
    found = newest_read(store, elements)
    assert (found.clock if found else 0) >= finished
    return found.clock if found else 0


def test_killed_at_random_lines_of_the_write(started: Writers, tmp_path: Path) -> None:
    store, rng = open_store(str(tmp_path)), random.Random(1)
    clock = left_unfinished = 0
    for _ in range(KILLS):
        started.start(store=str(tmp_path), lines=rng.randint(1, 3800), **JOB)  # of none to some checkpoints
        finished, status = started.ended()
        assert status == signal.SIGKILL
        clock = after_kill(store, max(clock, finished))
        left_unfinished += any(one.condition is Condition.UNFINISHED for one in survey(store, Check.SIZES))
    assert clock >= KILLS // 2 and left_unfinished >= KILLS // 2
    write(store, CutId(clock + 1, 99))
    prune(store, 1)
    left = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file())
    folder = f"clock-{clock + 1}-99"
    assert left == [f"{folder}/manifest.json", f"{folder}/part-0.safetensors", f"{folder}/part-1.safetensors"]


@pytest.mark.slow
def test_killed_at_every_line_of_two_checkpoints(started: Writers) -> None:
    """In memory, where fsync costs nothing: what is tested is the order of steps."""
    clock, lines = 0, 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        while clock < 3:  # a whole one, and one that has another before it, killed at each of their lines
            lines += 1
            folder = Path(root, str(lines))
            started.start(store=str(folder), lines=lines, **JOB)
            finished, status = started.ended()
            assert status == signal.SIGKILL
            clock = after_kill(open_store(str(folder)), finished)
            shutil.rmtree(folder, ignore_errors=True)
    assert lines > 500


@pytest.mark.slow
def test_killed_at_random_times(started: Writers, tmp_path: Path) -> None:
    store, rng = open_store(str(tmp_path)), random.Random(2)
    clock = 0
    for _ in range(KILLS):
        pid = started.start(store=str(tmp_path), keep=2, partitions=3, elements=500_000)
        finished = started.finished()
        time.sleep(rng.uniform(0, 0.2))  # this is the fault, nothing is waited for
        started.kill(pid)
        finished = max(finished, started.ended()[0])
        clock = after_kill(store, max(clock, finished), 500_000)
    assert clock >= KILLS
