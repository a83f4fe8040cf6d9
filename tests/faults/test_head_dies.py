"""Ray's head of a local run dies under its driver: one sentence, soon, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agileml.cluster.owned_folder import orphans
from agileml.errors import HEAD_LOST_CODE
from agileml.events.run import CutCommitted
from agileml.events.schema import events_of
from agileml.runs.event_log import EVENTS, read_events

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


SOON_S = 40.0  # Ray would end the process after 60


@pytest.mark.parametrize("frozen_s", [0.0, 4.0], ids=["at work", "frozen"])
def test_a_run_whose_head_died_says_so_and_leaves_nothing(frozen_s: float, tmp_path: Path) -> None:
    """A head that was frozen before has calls of the driver that it will never answer."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "agileml.cli", "run", "configs/mlr.yaml"]
    command += ["--set", "clocks=1000000", "--set", "machines.transient=1", "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as driver:
        try:
            until_s = time.monotonic() + 90
            while not (out / EVENTS).exists() or not events_of(read_events(out / EVENTS), CutCommitted):
                assert driver.poll() is None
                assert time.monotonic() < until_s
                time.sleep(0.05)
            (head,) = [p for p in psutil.Process(driver.pid).children() if p.name().startswith("gcs_server")]
            head.suspend()
            time.sleep(frozen_s)  # this is the fault
            head.kill()
            died_s = time.monotonic()
            _, said = driver.communicate(timeout=300)
        finally:
            driver.kill()
    assert driver.returncode == HEAD_LOST_CODE, said
    assert time.monotonic() - died_s < SOON_S
    assert said.splitlines()[-1].startswith("proteus: Ray's head on this computer has ended"), said
    assert "--resume" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert not orphans()
