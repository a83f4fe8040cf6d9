"""The whole command on real Ray nodes of this machine: evictions kill nodes, the bits stay, nothing is left."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from agileml.cluster.owned_folder import sweep
from agileml.cluster.watchdog import MARK
from agileml.events.market import AllocationEnded, InstanceNoticed
from agileml.events.schema import events_of
from agileml.events.terms import AllocationEnding
from agileml.runs.event_log import EVENTS, read_events

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[3]
SMALL: dict[str, Any] = {
    "application": "mlr",
    "data": {"kind": "digits"},
    "optimizer": {"kind": "adam", "learning_rate": 0.01},
    "clocks": 150,
    "clocks_per_pass": 4,
    "slices": 8,
    "machines": {"reliable": 1, "max": 4},
    "stage": "thresholds",
    "stage_thresholds": [1, 2],
    "cuts": {"every_s": 0.3},
    "verify": True,
    "market": {
        "kind": "made",
        "seed": 16,
        "types": ["c3.8xlarge"],
        "reliable_type": "c4.xlarge",
        "job_vcpus": 64,
        "job_hours": 1.5,
        "speed": 240,
        "silent_share": 0.5,
        "warm": 1,
        "paced": True,
    },
}


def command(config: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "agileml.cli", "run", str(config), "--out", str(out)]


def check(out: Path, log: str) -> dict[str, Any]:
    """What every finished job on a market has."""
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    market, events = summary["market"], read_events(out / EVENTS)
    assert summary["same_as_sequential"] is True
    assert "the same bits as one process" in log
    assert market["finished"]
    assert market["rebilled_differences"] == []
    assert market["usd"] < market["on_demand_usd"]
    evicted = [e for e in events_of(events, AllocationEnded) if e.ending is AllocationEnding.EVICTED]
    assert len(evicted) == market["evictions"] >= 1
    print(
        f"{market['evictions']} evictions, {summary['clocks_redone']} clocks again, ${market['usd']:.2f} of "
        f"${market['on_demand_usd']:.2f}, standard ${market['standard_checkpoint_usd']:.2f}, {summary['seconds']:.0f} s"
    )
    return summary


def test_a_job_on_real_nodes(tmp_path: Path) -> None:
    config, out = tmp_path / "job.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(SMALL))
    done = subprocess.run(
        command(config, out), cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = check(out, done.stdout)
    assert summary["machines"]["transient"]["lost"] >= 1
    assert {"bill", "  on demand", "  standard bid + checkpoints"} <= {
        line.partition(" $")[0] for line in done.stdout.splitlines()
    }
    ledger = str(out / "market" / "ledger.jsonl")
    rebilled = subprocess.run(
        [sys.executable, "-m", "agileml.cli", "bill", ledger, "--history", str(out / "market" / "prices.csv.gz")],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert rebilled.returncode == 0, rebilled.stdout + rebilled.stderr


@pytest.mark.slow
def test_the_demo(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    config = ROOT / "configs" / "demo.yaml"
    done = subprocess.run(
        command(config, out), cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = check(out, done.stdout)
    assert summary["metrics"]["test_accuracy"] > 0.9
    assert set(summary["stages"]) == {1, 2, 3}
    assert events_of(read_events(out / EVENTS), InstanceNoticed), "some evictions are announced"


@pytest.mark.slow
def test_a_killed_driver_leaves_no_machine(tmp_path: Path) -> None:
    """SIGKILL: nobody gives anything back, and every machine ends by itself within orphan_after_s.

    The head is no machine: what Ray leaves of it goes when the next cluster of this machine starts, at the latest.
    """
    config, out = tmp_path / "job.yaml", tmp_path / "run"
    orphan_after_s = 10.0
    config.write_text(
        yaml.safe_dump({**SMALL, "market": {**SMALL["market"], "orphan_after_s": orphan_after_s}})
    )
    run = subprocess.Popen(
        command(config, out), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until_s = time.monotonic() + 120
        family: list[psutil.Process] = []
        machines: list[psutil.Process] = []
        while not all(has(machines, kind) for kind in ("raylet/raylet", "ray::MachineActor")):
            assert run.poll() is None
            assert time.monotonic() < until_s, [name_of(process) for process in machines]
            time.sleep(0.2)
            family = psutil.Process(run.pid).children(recursive=True)
            machines = [process for process in family if is_of_a_machine(process)]
        run.send_signal(signal.SIGKILL)
        run.wait()
        took_s = seconds_to_end(machines, limit_s=orphan_after_s + 5.0)
        print(f"{len(machines)} processes of machines, the last one ended {took_s:.1f} s after the driver")
        print(f"{sum(map(lives, family))} of {len(family) - len(machines)} others are there still")
        sweep()
        seconds_to_end(family, limit_s=5.0)
    finally:
        run.kill()


def is_of_a_machine(process: psutil.Process) -> bool:
    """Whether it carries the mark of a machine, as the watchdogs know it."""
    with contextlib.suppress(psutil.Error):
        return MARK in process.environ()
    return False


def name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def has(processes: list[psutil.Process], kind: str) -> bool:
    return any(kind in name_of(process) for process in processes)


def lives(process: psutil.Process) -> bool:
    """The children of dead parents are zombies until somebody asks for them."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def seconds_to_end(processes: list[psutil.Process], limit_s: float) -> float:
    """Until all of them are dead."""
    began_s = time.monotonic()
    while left := [process for process in processes if lives(process)]:
        assert time.monotonic() - began_s < limit_s, left
        time.sleep(0.05)
    return time.monotonic() - began_s
