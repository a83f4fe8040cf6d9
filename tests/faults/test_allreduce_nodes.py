"""Sums by all-reduce on real Ray nodes: processes that die and freeze in the middle of a sum, notices and joins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agileml
from agileml.cluster.local import LocalCluster
from agileml.events.run import ClockDone, FaultFired, MachineLost, MembershipChanged, PlanFinished, PlanFired
from agileml.events.schema import Log, events_of, of_type
from agileml.events.terms import Cause
from agileml.runs.event_log import EVENTS, read_events
from tests.agileml.net.test_allreduce import job, reference
from tests.faults.fault_rig import CHAOS_SEEDS
from tests.faults.killable_fleet import KillableFleet

pytestmark = pytest.mark.cluster


def train(cluster: LocalCluster, values: Mapping[str, Any], out: Path) -> Log:
    """The events of a run."""
    result = agileml.run(values, name=out.name, fleet=KillableFleet(cluster, values), out=str(out))
    return read_events(result.folder / EVENTS)


def losses(events: Log) -> list[float]:
    found = {done.clock: done.loss for done in events_of(events, ClockDone)}
    return [found[clock] for clock in sorted(found)]


@pytest.mark.slow
def test_a_frozen_and_a_killed_machine_a_notice_and_a_join(
    local_cluster: LocalCluster, tmp_path: Path
) -> None:
    plan = [
        {"at_clock": 10, "freeze": 1, "seconds": 1.6},  # nothing closes: the sum under way is given up
        {"at_clock": 25, "kill": 1},  # connections close: the sum fails
        {"at_clock": 40, "join": 1},
        {"at_clock": 50, "notice": 1, "warning_s": 20.0},
    ]
    values = job(clocks=60, plan=plan)
    events = train(local_cluster, values, tmp_path / "run")
    np.testing.assert_allclose(losses(events), reference(values), rtol=1e-3)
    done = [type(event) for event in events_of(events, PlanFired | PlanFinished)]
    assert done == [PlanFired, PlanFinished] * len(plan)
    changes = events_of(events, MembershipChanged)
    assert not any(change.rolled_back for change in changes)  # a replica lives
    for change in changes:
        is_planned = change.trigger.cause in (Cause.NOTICE, Cause.JOIN, Cause.START)
        assert change.redone <= (0 if is_planned else 1), change
    for fault in of_type(events, FaultFired):
        lost = next(each for each in of_type(events, MachineLost) if each.t_s >= fault.t_s)
        assert lost.t_s - fault.t_s < 2.0, (fault, lost)  # gloo itself would wait for half an hour


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(CHAOS_SEEDS))
@pytest.mark.parametrize("config", ["mlr", "cnn"])
def test_twelve_faults(config: str, seed: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agileml.cli", "chaos", f"configs/{config}.yaml", "--seed", str(seed)]
    settings = ["exchange=allreduce", "deterministic=false", "clocks=300", "machines.max=8", "slices=8"]
    settings += ["plan=[]"]
    for setting in settings:
        command += ["--set", setting]
    command += ["--faults", "12", "--out", str(tmp_path / "chaos")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    last = done.stdout.splitlines()[-1]
    print(last)
    assert "12 of 12 faults fired" in last
    assert "bits not promised, loss within 5%" in last
    assert "0 processes left" in last
