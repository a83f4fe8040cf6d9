"""The head dies by SIGKILL: every machine ends by itself within `orphan_after_s`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import psutil
import pytest

from agileml.cluster.owned_folder import remove
from agileml.cluster.processes import processes_of
from agileml.cluster.watchdog import MARK

pytestmark = pytest.mark.cluster

AFTER_S = 15.0  # a busy machine may look late: a fifth of it is left for that
DRIVER = """
    import json, os, sys, time
    import ray
    from agileml.cluster.local import LocalCluster
    from tests.cluster.test_local_nodes import Sleeper

    with LocalCluster(orphan_after_s=float(sys.argv[1])) as cluster:
        machines = cluster.add_nodes("transient", 2)
        actors = [
            Sleeper.options(label_selector={"ray.io/node-id": machine.node_id}, num_cpus=0.5).remote()
            for machine in machines
        ]
        pids = ray.get([actor.start.remote() for actor in actors])
        gcs = next(p.pid for p in cluster.processes() if p.name() == "gcs_server")
        print(json.dumps({"folder": str(cluster.token_path.parent), "pids": sum(pids, []), "gcs": gcs}), flush=True)
        for line in sys.stdin:
            if line == "kill\\n":
                cluster.kill(machines[0].node_id)
                print("killed", flush=True)
        time.sleep(600)
"""


@contextmanager
def a_driver() -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """A process with a cluster of two machines, each with an actor that has a child of its own."""
    script = textwrap.dedent(DRIVER)
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(AFTER_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert process.stdout is not None
    folder = None
    try:
        told = json.loads(process.stdout.readline())
        folder = Path(told["folder"])
        yield process, told
    finally:
        process.kill()
        process.communicate()
        if folder is not None:
            for left in processes_of(folder):
                left.kill()
            remove(folder)


def seconds_until(condition: Callable[[], bool], timeout_s: float) -> float:
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < timeout_s, "this never came true"
        time.sleep(0.02)
    return time.monotonic() - began_s


def machines_of(folder: Path) -> list[psutil.Process]:
    """Raylets, workers and whatever they started, but not what belongs to the head or watches."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK, "").startswith(folder.name):
                found.append(process)
    return found


def kinds_of(processes: list[psutil.Process], kind: str) -> int:
    """How many of them call themselves that."""
    found = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found += kind in " ".join(process.cmdline())
    return found


def lives(pid: int) -> bool:
    """The children of dead parents are zombies until somebody asks for them."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def watchdogs(folder: Path) -> int:
    found = 0
    for process in processes_of(folder):
        with contextlib.suppress(psutil.Error):  # one that is dying has no command line
            found += "agileml.cluster.watchdog" in process.cmdline()
    return found


def test_the_driver_is_killed() -> None:
    with a_driver() as (process, told):
        folder = Path(str(told["folder"]))
        assert watchdogs(folder) == 2
        children = cast("list[int]", told["pids"])
        assert {each.pid for each in machines_of(folder)} >= set(children), "actors, and a child of each"
        # Workers of Ray, which name themselves once they have started, are found as well.
        for kind in ("raylet/raylet", "ray::Sleeper"):
            seconds_until(lambda: kinds_of(machines_of(folder), kind) == 2, 120)  # noqa: B023
        os.kill(process.pid, signal.SIGKILL)
        # (A process that is being ended has no environment any more, but still a number.)
        seconds = seconds_until(
            lambda: not machines_of(folder) and not any(map(lives, children)), AFTER_S + 2
        )
        assert seconds < AFTER_S
        seconds_until(lambda: watchdogs(folder) == 0, 60)
        print(f"all machines ended {seconds:.1f} s after the driver (limit {AFTER_S:g} s)")


@pytest.mark.slow
def test_the_gcs_is_killed_or_frozen_while_the_driver_lives() -> None:
    for number in (signal.SIGKILL, signal.SIGSTOP):
        with a_driver() as (_, told):
            folder = Path(str(told["folder"]))
            os.kill(int(str(told["gcs"])), number)
            assert seconds_until(lambda: not machines_of(folder), AFTER_S + 2) < AFTER_S  # noqa: B023


@pytest.mark.slow
def test_a_watchdog_goes_with_its_machine_and_leaves_the_others_alone() -> None:
    with a_driver() as (process, told):
        folder = Path(str(told["folder"]))
        assert process.stdin is not None
        process.stdin.write("kill\n")
        process.stdin.flush()
        seconds_until(lambda: watchdogs(folder) == 1, 60)
        began_s = time.monotonic()
        while time.monotonic() - began_s < 2 * AFTER_S:  # the other one lives on well beyond the limit
            assert len(machines_of(folder)) >= 3
            time.sleep(0.2)
