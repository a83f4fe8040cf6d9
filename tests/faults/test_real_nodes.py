"""Faults on real Ray nodes: machines killed as a whole, processes killed alone, frozen, cut off, told too late."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

import agileml
from agileml.checkpoints.checkpoint import Check, newest
from agileml.checkpoints.opening import open_store
from agileml.cluster.fleet import FleetEvent
from agileml.cluster.local import LocalCluster
from agileml.cluster.owned_folder import sweep
from agileml.config.job import load
from agileml.events.run import (
    CheckpointSaved,
    ClockDone,
    FaultFired,
    MachineLost,
    MachinesJoined,
    MembershipChanged,
    Warned,
)
from agileml.events.schema import E, Logged, events_of, of_type
from agileml.events.terms import Cause, Fault
from agileml.runs.event_log import EVENTS, read_events
from agileml.session import Result
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import MLR, job
from tests.faults.killable_fleet import KillableFleet

pytestmark = pytest.mark.cluster
FROZEN_S = 2.25  # it is missed after a second


def train(cluster: LocalCluster, values: Mapping[str, Any], out: Path) -> Result:
    return agileml.run(values, name=out.name, fleet=KillableFleet(cluster, values), out=str(out))


def log_of(result: Result, kind: type[E]) -> list[Logged[E]]:
    return of_type(read_events(result.folder / EVENTS), kind)


def test_every_fault_of_a_machine_in_one_run(local_cluster: LocalCluster, tmp_path: Path) -> None:
    plan = [
        # First: another controller fires the rest.
        {"at_clock": 10, "kill_controller": True},
        {"at_clock": 60, "freeze": 1, "seconds": FROZEN_S},
        # A controller that was starved just before doubts a short one.
        {"at_clock": 75, "cut": 1, "seconds": FROZEN_S},
        {"at_clock": 90, "slow": 1, "factor": 10.0, "seconds": 0.3},
        {"at_clock": 105, "kill": 1},
        {"at_clock": 120, "short_notice": "all", "warning_s": 0.0},
    ]
    values = job(MLR, clocks=140, plan=plan)
    result = train(local_cluster, values, tmp_path / "run")
    assert result.summary["params_sha256"] == reference(values)
    assert result.summary["plan"] == {"planned": 6, "fired": 6, "finished": 6}
    assert result.summary["faults"] == {
        "cut": 1, "freeze": 1, "kill": 1, "kill_controller": 1, "slow": 1,
    }  # fmt: skip
    transient = result.summary["machines"]["transient"]
    assert transient["started"] == transient["joined"] == 2  # frozen and cut off, they came again
    assert transient["left"] + transient["lost"] == 4
    times_s = {
        each.event.machines[0]: each.t_s
        for each in log_of(result, FaultFired)
        if each.event.fault is Fault.FREEZE
    }
    ((frozen, at_s),) = times_s.items()
    lost = next(e for e in log_of(result, MachineLost) if e.event.machine == frozen and e.t_s >= at_s)
    back = next(e for e in log_of(result, MachinesJoined) if frozen in e.event.machines and e.t_s >= at_s)
    assert lost.t_s < back.t_s, "it was missed while it was frozen"
    assert lost.t_s - at_s < 2.0


@pytest.mark.slow
def test_a_process_that_is_killed_alone_is_replaced_and_counted(
    local_cluster: LocalCluster, tmp_path: Path
) -> None:
    """As the kernel does it when memory is short: SIGKILL to one process; its machine lives on."""
    values = job(MLR, clocks=1_000_000)
    out = tmp_path / "run"
    killed: list[int] = []

    def logged(kind: type[E]) -> list[E]:
        return events_of(read_events(out / EVENTS), kind) if (out / EVENTS).exists() else []

    def kill_one() -> None:
        """Kill one once the run is under way, and stop the run once another has joined."""
        while not any(done.clock > 100 for done in logged(ClockDone)):
            if over.wait(0.02):
                return
        actors = [
            p for p in psutil.process_iter(["cmdline"]) if "MachineActor" in " ".join(p.info["cmdline"] or [])
        ]
        # Now, and not before: machines of this run may have been added for it.
        raylets = {process.pid for process in local_cluster.processes()}
        ours = [p for p in actors if any(part.pid in raylets for part in p.parents())]
        killed.append(ours[-1].pid)
        os.kill(ours[-1].pid, signal.SIGKILL)
        while not any("m3" in joined.machines for joined in logged(MachinesJoined)):
            if over.wait(0.1):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    over = threading.Event()
    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        result = train(local_cluster, values, out)
    finally:
        over.set()
        killer.join()
    assert killed
    assert result.summary["stopped"]
    assert result.summary["params_sha256"] == reference({**values, "clocks": result.summary["clocks"]})
    lost = log_of(result, MachineLost)[0].event.machine
    joined = [machine for each in log_of(result, MachinesJoined) for machine in each.event.machines]
    # The first three are ready in any order; m3 is the other process on the machine of the one that died.
    assert (sorted(joined[:3]), joined[3:]) == (["m0", "m1", "m2"], ["m3"])
    tiers = result.summary["machines"]
    assert sum(tier["lost"] for tier in tiers.values()) == 1, (lost, tiers)
    assert sum(tier["joined"] for tier in tiers.values()) == 1
    assert result.summary["failures"] == 1


@pytest.mark.slow
def test_a_process_that_was_starting_when_the_controller_died_meets_the_next_one(
    local_cluster: LocalCluster, tmp_path: Path
) -> None:
    """It was started with the address of a controller that is dead by the time it is up."""
    values = job(MLR, clocks=1_000_000)
    out = tmp_path / "run"

    def logged(kind: type[E]) -> list[E]:
        return events_of(read_events(out / EVENTS), kind) if (out / EVENTS).exists() else []

    def kill(mark: str) -> None:
        processes = psutil.process_iter(["cmdline"])
        found = [p for p in processes if mark in " ".join(p.info["cmdline"] or [])]
        raylets = {process.pid for process in local_cluster.processes()}
        ours = [p for p in found if any(part.pid in raylets for part in p.parents())]
        ours[-1].kill()

    def act() -> None:
        steps = [
            (lambda: any(done.clock > 100 for done in logged(ClockDone)), lambda: kill("MachineActor")),
            (
                lambda: any("started again" in said.reason for said in logged(Warned)),
                lambda: kill("HeadActor"),
            ),
            (
                lambda: any("m3" in joined.machines for joined in logged(MachinesJoined)),
                lambda: os.kill(os.getpid(), signal.SIGTERM),
            ),
        ]
        for is_due, do in steps:
            while not is_due():
                if over.wait(0.02):
                    return
            do()

    over = threading.Event()
    thread = threading.Thread(target=act)
    thread.start()
    try:
        result = train(local_cluster, values, out)
    finally:
        over.set()
        thread.join()
    assert result.summary["stopped"]
    assert result.summary["params_sha256"] == reference({**values, "clocks": result.summary["clocks"]})
    causes = {change.event.trigger.cause for change in log_of(result, MembershipChanged)}
    assert Cause.RESTART in causes


DRIVER = [sys.executable, "-m", "agileml.cli", "run", "configs/mlr.yaml"]


@pytest.mark.slow
def test_a_run_whose_driver_was_killed_goes_on_with_other_machines_in_another_stage(
    local_cluster: LocalCluster, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    settings = {
        "clocks": "20000",
        "machines.max": "4",
        "checkpoint.path": checkpoints,
        "checkpoint.every_s": "0.3",
    }
    command = [*DRIVER, "--out", str(tmp_path / "killed")]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        log = tmp_path / "killed" / EVENTS
        until_s = time.monotonic() + 240
        while not log.exists() or not events_of(read_events(log), CheckpointSaved):
            assert driver.poll() is None, driver.stderr and driver.stderr.read()
            assert time.monotonic() < until_s
            time.sleep(0.05)
    finally:
        driver.kill()
        driver.wait()
    sweep()  # what the next cluster here does first
    store = open_store(str(checkpoints))
    found = newest(store, print, Check.CHECKSUMS)
    assert found is not None
    assert found.name.clock > 0

    clocks = found.name.clock + 40
    changed = {
        "clocks": clocks,
        "machines": {"reliable": 2, "transient": 1, "max": 4},
        "stage": 1,
        "checkpoint": {"path": str(checkpoints), "every_s": 0.5},
    }
    config = load("configs/mlr.yaml", ["machines.max=4"]).changed(**changed)
    fleet = KillableFleet(local_cluster, config)
    result = agileml.run(
        config, name="resumed", fleet=fleet, out=str(tmp_path / "resumed"), resume=str(checkpoints)
    )
    assert log_of(result, MembershipChanged)[0].event.base == found.name.clock
    assert result.summary["stages"] == [1]
    assert result.summary["params_sha256"] == reference(config)
    last = newest(store, print, Check.CHECKSUMS)
    assert last is not None
    assert last.name.clock == clocks


class BusyFleet(KillableFleet):
    """Once, so busy with something that nobody asks the controller meanwhile."""

    def __init__(self, cluster: LocalCluster, values: Mapping[str, Any], log: Path) -> None:
        super().__init__(cluster, values)
        self._log = log
        self.done_to: int | None = None

    def poll(self) -> list[FleetEvent]:
        events = super().poll()
        if self.done_to is None and self._log.exists() and len(read_events(self._log)) > 100:
            (head,) = self.heads()
            self.done_to = head.pid
            self.act(head)
        return events

    def act(self, head: psutil.Process) -> None:
        """Kill the controller, and wait until Ray has started another."""
        head.kill()
        until_s = time.monotonic() + 60
        while not any(other.pid != head.pid for other in self.heads()):
            assert time.monotonic() < until_s, "Ray started no other controller"
            time.sleep(0.05)

    def heads(self) -> list[psutil.Process]:
        raylets = {process.pid for process in self._cluster.processes()}
        found = []
        for process in psutil.process_iter(["cmdline"]):
            with contextlib.suppress(psutil.Error):
                is_head = "HeadActor" in " ".join(process.info["cmdline"] or [])
                if is_head and any(parent.pid in raylets for parent in process.parents()):
                    found.append(process)
        return found


@pytest.mark.slow
def test_a_controller_that_dies_while_nobody_asks_is_told_everything_again(
    local_cluster: LocalCluster, tmp_path: Path
) -> None:
    values = job(MLR, clocks=700)
    out = tmp_path / "run"
    fleet = BusyFleet(local_cluster, values, out / EVENTS)
    result = agileml.run(values, name="busy", fleet=fleet, out=str(out))
    assert fleet.done_to is not None
    assert result.summary["params_sha256"] == reference(values)
    assert any(each.event.trigger.cause is Cause.RESTART for each in log_of(result, MembershipChanged))


class FreezingFleet(BusyFleet):
    """Freezes the controller for longer than the timeout of heartbeats."""

    def act(self, head: psutil.Process) -> None:
        head.suspend()
        time.sleep(FROZEN_S)  # the fault itself
        head.resume()


def test_a_controller_that_was_frozen_takes_no_machine_for_lost(
    local_cluster: LocalCluster, tmp_path: Path
) -> None:
    values = job(MLR, clocks=500)
    out = tmp_path / "run"
    fleet = FreezingFleet(local_cluster, values, out / EVENTS)
    result = agileml.run(values, name="frozen", fleet=fleet, out=str(out))
    assert fleet.done_to is not None
    assert not log_of(result, MachineLost)
    assert result.summary["params_sha256"] == reference(values)


@pytest.mark.slow
def test_chaos_from_the_command_line(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "agileml.cli",
        "chaos",
        "configs/mf.yaml",
        "--seed",
        "3",
        "--faults",
        "6",
    ]
    command += ["--set", "clocks=150", "--set", "machines.max=5", "--out", str(tmp_path / "chaos")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert "6 of 6 faults fired" in last
    assert "same bits, 0 processes left" in last
    assert not [p for p in psutil.process_iter() if f"{tmp_path}" in " ".join(cmdline(p))]


def cmdline(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []
