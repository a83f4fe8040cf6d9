"""User code that ends its process: survived so often, then the run stops and says so; lost machines never count."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agileml
from agileml.application import Application, Array, Settings, Table, Unit, Updates
from agileml.cluster.fleet import FleetEvent
from agileml.cluster.local import LocalCluster
from agileml.errors import RunError
from agileml.events.run import ProcessDied
from agileml.events.schema import events_of
from agileml.runs.event_log import EVENTS, read_events
from tests.faults.killable_fleet import KillableFleet

pytestmark = pytest.mark.cluster

JOB: dict[str, Any] = {
    "application": "package.module:Class",
    "clocks": 30,
    "clocks_per_pass": 2,
    "slices": 4,
    "machines": {"reliable": 1, "transient": 2, "max": 4},
}


class Exits(Application):
    """Leaves its process in the middle of the sixth clock, always or `once`: then the file `left` says so, and the
    tenth clock waits for the file `counted`."""

    def __init__(self, left: Path, once: bool) -> None:
        super().__init__(Settings(slices=4, clocks_per_pass=2))
        self.left, self.once = left, once

    @property
    def counted(self) -> Path:
        return self.left.with_name("counted")

    def tables(self) -> list[Table]:
        return [Table("w", 1, 4)]

    def load(self, slice_index: int) -> int:
        return slice_index

    def process(self, unit: Unit, items: int, parameters: Mapping[str, Any]) -> Updates:
        if unit.clock == 5:
            self._leave()
        until_s = time.monotonic() + 120
        while self.once and unit.clock == 9 and not self.counted.exists() and time.monotonic() < until_s:
            time.sleep(0.02)
        return Updates({"w": np.full((1, 4), unit.clock + items, np.float32)}, 1.0, 1)

    def _leave(self) -> None:
        if not self.once:
            os._exit(3)
        with contextlib.suppress(FileExistsError):
            self.left.touch(exist_ok=False)
            os._exit(3)

    def evaluate(self, parameters: Mapping[str, Array]) -> dict[str, float]:
        return {}


class CountingFleet(KillableFleet):
    """Makes a file once the log of the run has counted a process that died."""

    def __init__(self, cluster: LocalCluster, values: Mapping[str, Any], log: Path, counted: Path) -> None:
        super().__init__(cluster, values)
        self._log, self._counted = log, counted

    def poll(self) -> list[FleetEvent]:
        if self._log.exists() and events_of(read_events(self._log), ProcessDied):
            self._counted.touch()
        return super().poll()


@pytest.mark.slow
def test_one_exit_is_survived_and_a_lost_machine_is_none(local_cluster: LocalCluster, tmp_path: Path) -> None:
    application = Exits(tmp_path / "left", once=True)
    values = {**JOB, "max_failures": 1, "plan": [{"at_clock": 15, "kill_many": "all"}]}
    out = tmp_path / "run"
    fleet = CountingFleet(local_cluster, values, out / EVENTS, application.counted)
    result = agileml.run(values, application, fleet=fleet, out=str(out))
    assert application.left.exists()
    assert result.summary["failures"] == 1
    assert result.summary["machines"]["transient"]["lost"] >= 2
    (died,) = events_of(read_events(out / EVENTS), ProcessDied)
    assert (died.count, died.of) == (1, 1)
    wanted = agileml.run(JOB, application, sequential=True, out=str(tmp_path / "sequential"))
    assert result.summary["params_sha256"] == wanted.summary["params_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 2])
def test_exits_again_and_again_stop_the_run_with_their_cause(
    most: int, local_cluster: LocalCluster, tmp_path: Path
) -> None:
    values = {**JOB, "max_failures": most}
    fleet = KillableFleet(local_cluster, values)
    with pytest.raises(RunError) as failed:
        agileml.run(values, Exits(tmp_path / "never", once=False), fleet=fleet, out=str(tmp_path / "run"))
    said = str(failed.value)
    print(said)
    assert f"more than max_failures = {most}" in said, said
    assert "ended by itself (" in said
