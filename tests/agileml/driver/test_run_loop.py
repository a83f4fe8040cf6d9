"""What the driver's loop makes of what the controller says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agileml.cluster.fleet import LocalFleet
from agileml.core.protocol.commands import Finished, Happened
from agileml.driver.run_loop import RunLoop
from agileml.driver.startup import Startup
from agileml.driver.stop_signal import StopSignal
from agileml.events.run import ClockDone
from agileml.runs.event_log import read_events
from agileml.runs.folder import RunFolder
from agileml.runs.progress import Progress
from tests.agileml.driver.ray_rig import SPEC, RayRig


class NoNodes(LocalFleet):
    """A fleet without nodes, which starts no cluster."""

    def poll(self) -> list[object]:  # type: ignore[override]
        return []


def test_the_log_has_the_controllers_times_though_the_clock_was_set_since_this_process_began(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a notebook on a computer that has slept: the controller begins with the run, and this process did not."""
    now_s = time.time
    monkeypatch.setattr(time, "time", lambda: now_s() + 3600)
    rig, stop = RayRig(monkeypatch), StopSignal()
    folder = RunFolder.create(tmp_path / "run", "run")
    startup = Startup(60.0, stop, print)
    loop = RunLoop(SPEC.config, NoNodes(SPEC), rig.group, folder, Progress(8), stop, startup)
    done = Happened(ClockDone(8, 0.5, 64, 0.1), time.time())
    rig.head.news = {"pending": (done,), "stage": 1, "clock": 8, "finished": Finished(8, ("m0",))}
    assert loop.run().clock == 8
    folder.events.close()
    (written,) = [each for each in read_events(folder.events.path) if isinstance(each.event, ClockDone)]
    assert 0 <= written.t_s < 60
