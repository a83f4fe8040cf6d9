"""Where a run prints its progress: a place that takes no more costs what is shown, and never the run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAID = """
import sys
from agileml.runs.progress import Progress, Snapshot
with Progress(10) as progress:
    for clock in range(2):
        progress.show(Snapshot(clock, 10, 0.5, 1, 1, 1, f"clock {clock}"))
        progress.say("told to stop: the run ends with its next cut")
print("the result is written", flush=True)
"""


@pytest.mark.parametrize("screen", ["a pipe whose reader has gone", "a full disk"])
def test_a_screen_that_takes_no_more_ends_no_run(screen: str) -> None:
    """As `proteus run job.yaml 2>&1 | tee log`: Ctrl-C ends `tee`, and then the run says that it ends with its next
    cut. rich would end the process, with its standard output at /dev/null."""
    if screen == "a full disk":
        writer = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, writer = os.pipe()
        os.close(reader)
    try:
        command = [sys.executable, "-c", SAID]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, text=True, check=False)
    finally:
        os.close(writer)
    assert done.stdout == "the result is written\n"
