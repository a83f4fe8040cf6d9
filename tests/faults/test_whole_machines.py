"""Machines of two compute processes on real Ray nodes: killed as a whole, and one process of them killed alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

import agileml
from agileml.cluster.fleet import FleetEvent, LocalFleet
from agileml.config.job import from_values
from agileml.events.run import ProcessDied
from agileml.events.schema import events_of
from agileml.process.spec import RunSpec
from agileml.runs.event_log import EVENTS, read_events
from tests.agileml.process.compute_pool.test_pool import TORCH
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import MF, MLR, job

pytestmark = pytest.mark.cluster
TWO_CORES = {"reliable": 1, "transient": 1, "max": 2, "cpus": 2}
PROCESS = "agileml.process.compute_pool.process"


def compute_processes() -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if PROCESS in (each.info["cmdline"] or [])]


@pytest.mark.slow
@pytest.mark.parametrize("base", [MLR, MF, TORCH], ids=["mlr", "mf", "torch"])
def test_a_machine_of_two_processes_is_killed(base: Mapping[str, Any], tmp_path: Path) -> None:
    before = set(compute_processes())
    values = job(base, machines=TWO_CORES, plan=[{"at_clock": 15, "kill": 1}])
    result = agileml.run(values, out=str(tmp_path / "run"))
    assert result.summary["params_sha256"] == reference(values)
    assert result.summary["faults"] == {"kill": 1}
    left = set(compute_processes()) - before
    assert not psutil.wait_procs(left, timeout=300)[1]


@pytest.mark.slow
def test_a_machine_goes_with_one_of_its_processes_and_another_takes_its_place(tmp_path: Path) -> None:
    before = set(compute_processes())

    class KillsOne(LocalFleet):
        """Kills one compute process once all are there."""

        killed = False

        def poll(self) -> list[FleetEvent]:
            here = sorted(set(compute_processes()) - before, key=lambda each: each.pid)
            if len(here) == 4 and not self.killed:
                KillsOne.killed = True
                here[0].kill()
            return super().poll()

    values = job(MLR, clocks=400, machines=TWO_CORES)
    result = agileml.run(
        values, fleet=KillsOne(RunSpec("whole", from_values(values))), out=str(tmp_path / "run")
    )
    assert result.summary["params_sha256"] == reference(values)
    assert len(events_of(read_events(result.folder / EVENTS), ProcessDied)) == 1
