"""Where a run prints its progress: a place that takes no more costs what is shown, and never the run."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO

import pytest
from rich.console import Console

from agileml.runs.progress import Progress, Snapshot

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


@pytest.mark.parametrize("colour", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_log_gets_lines_though_the_environment_asks_for_colours(colour: str) -> None:
    """As in the jobs of many build servers. A live block would be drawn eight times a second, for days."""
    environment = {**os.environ, colour: "1", "TERM": "xterm"}
    command = [sys.executable, "-c", SAID]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stderr.count("told to stop") == 2
    assert "\x1b[?25l" not in done.stderr  # as a live block begins, to hide the cursor
    assert "(clock 1)" in done.stderr


def test_a_terminal_that_cannot_move_its_cursor_shows_lines_as_the_run_goes_on() -> None:
    """As in a shell of Emacs. It showed nothing until the end."""
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=200, _environ={"TERM": "dumb"})
    with Progress(10, console=console) as progress:
        progress.show(Snapshot(1, 10, 0.5, 1, 1, 2))
        assert "clock 1/10, loss 0.5, stage 1" in out.getvalue()
