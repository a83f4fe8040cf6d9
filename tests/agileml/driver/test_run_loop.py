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
from agileml.events.run import BytesSent, ClockDone
from agileml.events.schema import events_of
from agileml.runs.event_log import read_events
from agileml.runs.folder import RunFolder
from agileml.runs.progress import Progress
from tests.agileml.driver.ray_rig import SPEC, RayRig


class NoNodes(LocalFleet):
    """A fleet without nodes, which starts no cluster."""

    def poll(self) -> list[object]:  # type: ignore[override]
        return []


class Restarting(NoNodes):
    """Where the controller dies, and the next one does not know the machine that went before."""

    def __init__(self, rig: RayRig) -> None:
        super().__init__(SPEC)
        self._rig, self._news = rig, list(NEWS)

    def poll(self) -> list[object]:  # type: ignore[override]
        news = self._news.pop(0)
        if not news["bytes_sent"]:
            self._rig.replace_head()
        self._rig.head.news = {"stage": 1, "clock": 4, **news}
        return []


NEWS = (
    {"bytes_sent": {"m0": (1, 10, 0, 0, 5), "m1": (2, 20, 300, 0, 5)}},
    {"bytes_sent": {"m0": (1, 15, 0, 0, 5)}},
    {"bytes_sent": {}},
    {"bytes_sent": {"m0": (1, 40, 0, 0, 5)}, "clock": 8, "finished": Finished(8, ("m0",))},
)


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


def test_bytes_of_machines_that_went_before_the_controller_died_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("agileml.driver.run_loop.BYTES_S", 0.0)
    rig, stop = RayRig(monkeypatch), StopSignal()
    folder = RunFolder.create(tmp_path / "run", "run")
    startup = Startup(60.0, stop, print)
    loop = RunLoop(SPEC.config, Restarting(rig), rig.group, folder, Progress(8), stop, startup)
    loop.run()
    folder.events.close()
    told = [each.by_kind for each in events_of(read_events(folder.events.path), BytesSent)]
    totals = [sum(each.values()) for each in told]
    assert totals == sorted(totals), "a total that falls and rises again would count as traffic"
    assert told[-1] == {"pull": 3, "push": 60, "fetch": 300, "cut": 0, "control": 10}
