"""A pool of processes that is interrupted while it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
