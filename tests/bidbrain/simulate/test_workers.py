"""A pool of processes that is interrupted while it starts, and two of them side by side."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bidbrain.simulate import workers
from bidbrain.simulate.workers import Pool

# Each process of the pool interrupts the one that is starting it. At the end it says whom it leaves behind.
PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
from bidbrain.simulate.workers import Pool

if sys.argv[1] == "a second thread":  # takes the signal when the main thread does not
    threading.Thread(target=threading.Event().wait, daemon=True).start()
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    with Pool(2) as pool:
        for _ in pool.map(time.sleep, [60.0] * 8):
            pass
except KeyboardInterrupt:
    print("interrupted", Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
"""


@pytest.mark.parametrize("threads", ["one thread", "a second thread"])
def test_an_interrupt_while_processes_are_started_leaves_none_behind(threads: str) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, threads],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted []\n", "")


KILLED = """
import os, signal, time
from bidbrain.simulate.workers import Pool

def work(number):
    if number == 0:
        os.kill(os.getppid(), signal.SIGTERM)
    return time.sleep(0.01)

with Pool(2) as pool:
    list(pool.map(work, range(8)))
"""


def test_no_process_is_left_of_one_that_was_killed() -> None:
    """As by `kill` or a batch system. This returns once nobody has the pipe of the output any more."""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=root, capture_output=True, check=False, timeout=240
    )
    assert done.returncode == -signal.SIGTERM


def test_pools_of_two_threads_do_each_their_own_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of two simulations in a notebook: each had rows of the other."""
    both = threading.Barrier(2)

    class Together(ProcessPoolExecutor):
        """No processes before both pools want some."""

        def __init__(self, *args: Any, **options: Any) -> None:
            both.wait(60)
            super().__init__(*args, **options)

    def tagged(tag: str) -> list[tuple[str, int]]:
        with Pool(2) as pool:
            return list(pool.map(lambda item: (tag, item), range(3)))

    monkeypatch.setattr(workers, "ProcessPoolExecutor", Together)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(tagged, "ab"))
    assert found == [[(tag, item) for item in range(3)] for tag in "ab"]
