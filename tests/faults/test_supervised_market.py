"""A supervised job on a played market: its driver and its head are killed, and it goes on with the same machines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from agileml.cluster.owned_folder import orphans
from agileml.events.market import MarketOpened
from agileml.events.run import RunRestarted
from agileml.events.schema import events_of, of_type
from bidbrain.billing import Ending
from bidbrain.live.journal import JOURNAL, Answered, Closed, Ended, Opened, Record, read_journal
from tests.faults.supervised_run import LIMIT_S, driver_of, has_saved_since, log_of, until

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

ROOT = Path(__file__).resolve().parents[2]
JOB: dict[str, Any] = {
    "application": "mlr",
    "data": {"kind": "digits"},
    "optimizer": {"kind": "adam", "learning_rate": 0.01},
    "clocks": 600,
    "clocks_per_pass": 4,
    "slices": 8,
    "machines": {"reliable": 1, "max": 3},
    "cuts": {"every_s": 0.3},
    "verify": True,
    "market": {
        "kind": "made",
        "seed": 16,
        "types": ["c3.8xlarge"],
        "reliable_type": "c4.xlarge",
        "job_vcpus": 64,
        "job_hours": 1.0,
        "speed": 60,
        "silent_share": 0.5,
        "warm": 1,
        "paced": True,
    },
}


def supervised(folder: Path, out: Path) -> subprocess.Popen[str]:
    config = folder / "job.yaml"
    config.write_text(yaml.safe_dump({**JOB, "checkpoint": {"path": str(folder / "saved"), "every_s": 0.5}}))
    command = [sys.executable, "-m", "agileml.cli", "run", str(config), "--supervise", "--out", str(out)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def journal_of(out: Path) -> list[Record]:
    return list(read_journal(out / "market" / JOURNAL))


def test_the_driver_dies_and_then_rays_head(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = supervised(tmp_path, out)
    try:
        until(lambda: has_saved_since(out, 0), run)
        before = journal_of(out)
        driver_of(run).kill()
        until(lambda: has_saved_since(out, 1), run)
        between = journal_of(out)
        (gcs,) = [each for each in driver_of(run).children() if each.name().startswith("gcs_server")]
        gcs.kill()
        said, _ = run.communicate(timeout=LIMIT_S)
    finally:
        for process in psutil.Process(run.pid).children() if run.poll() is None else []:
            process.kill()
        run.kill()
    assert run.returncode == 0, said
    first, second = (each.cause for each in events_of(log_of(out), RunRestarted))
    assert first == "its process was ended by SIGKILL"
    # A driver that waits for an answer of the head just then is ended by Ray itself, a minute later.
    assert second in ("Ray's head has ended", "its process ended without a result (exit code 1)"), said
    after = journal_of(out)
    assert after[: len(before)] == before and after[: len(between)] == between, "one journal"
    assert [type(each) for each in after].count(Opened) == 1
    assert [type(each) for each in after].count(Closed) == 1
    assert len(of_type(log_of(out), MarketOpened)) == 1
    answers = [each for each in after if isinstance(each, Answered) and each.instances]
    names = Counter(instance.instance_id for each in answers for instance in each.instances)
    assert set(names.values()) == {1}, "nothing is bought twice"
    # The reliable machine was bought once and is held to the end: no restart gave it back.
    reliable = [each for each in after if isinstance(each, Ended) and each.number < 0]
    assert [each.ending for each in reliable] == [Ending.JOB_END]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["same_as_sequential"] is True
    assert (summary["clocks"], summary["restarts"]["count"]) == (JOB["clocks"], 2)
    market = summary["market"]
    assert market["finished"] and market["rebilled_differences"] == []
    print(
        f"${market['usd']:.2f}, {market['grants']} grants, {market['evictions']} evictions, at most "
        f"{summary['restarts']['longest_s']:.1f} s without a clock"
    )
    assert not orphans()
