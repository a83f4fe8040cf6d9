"""Plans of chaos runs, and what the command refuses before anything starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.cli import main
from agileml.cli.chaos import chaos_plan
from agileml.cluster.own_folder import orphans
from agileml.config.job import JobConfig, from_values, load

MLR = {"application": "mlr", "data": {"kind": "digits"}}
TROUBLE = {"kill", "kill_many", "kill_reliable", "notice", "short_notice"}


def config_of(reliable: int, transient: int, most: int, *, checkpoints: bool) -> JobConfig:
    machines = {"reliable": reliable, "transient": transient, "max": most}
    values = {**MLR, "clocks": 50, "machines": machines, "slices": 64}
    return from_values(values | ({"checkpoint": {"path": "somewhere"}} if checkpoints else {}))


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    faults=st.integers(1, 30),
    reliable=st.integers(1, 3),
    transient=st.integers(1, 5),
    spare=st.integers(2, 4),
    checkpoints=st.booleans(),
)
def test_a_plan_is_one_that_the_job_survives(
    seed: int, faults: int, reliable: int, transient: int, spare: int, checkpoints: bool
) -> None:
    config = config_of(reliable, transient, reliable + transient + spare, checkpoints=checkpoints)
    clocks, plan = chaos_plan(config, seed, faults)
    assert (clocks, plan) == chaos_plan(config, seed, faults)
    assert sum("join" not in event for event in plan) == faults
    at = [event["at_clock"] for event in plan]
    assert at == sorted(at)
    assert at[0] >= 1
    assert at[-1] < clocks
    assert clocks >= config.clocks
    config.changed(clocks=clocks, plan=plan)  # refuses what cannot be carried out
    assert checkpoints or not any("disk_full" in event for event in plan)
    assert sum("kill_reliable" in event for event in plan) < reliable


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["chaos", *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"machines": {"reliable": 1, "transient": 0, "max": 4}}, "chaos needs at least 2 machines"),
        ({"machines": {"reliable": 1, "transient": 1, "max": 2}}, "machines.max of at least 3"),
        ({"plan": [{"at_clock": 3, "kill": 1}]}, "leave out plan, address and market"),
        ({"address": "10.0.0.1:1"}, "leave out plan, address and market"),
        ({"data": {"kind": "nothing"}}, "data.kind"),
    ],
)
def test_a_job_that_cannot_start_leaves_nothing(
    changes: dict[str, object],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(yaml.safe_dump({**MLR, "clocks": 20, **changes}))
    assert sentence in refused(["job.yaml", "--out", "out"], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


@pytest.mark.parametrize("held", ["plan.yaml", "run", "sequential", "checkpoints"])
def test_nothing_of_another_chaos_run_is_overwritten(
    held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**MLR, "clocks": 20}))
    out = tmp_path / "out"
    out.mkdir()
    (out / held).write_text("mine")
    said = refused([str(tmp_path / "job.yaml"), "--out", str(out)], capsys)
    assert f"{out} holds another chaos run (found {held})" in said
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [(held, "mine")]


def test_a_process_whose_folder_is_gone_is_found(tmp_path: Path) -> None:
    gone = f"/tmp/proteus-{tmp_path.name.replace('-', '')}gone/x"
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", gone])
    try:
        while not any(found.pid == process.pid for found in orphans()):
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert not any(found.pid == process.pid for found in orphans())


def test_a_process_that_writes_to_a_folder_that_is_gone_is_found_but_not_the_one_that_asks() -> None:
    folder = Path(tempfile.mkdtemp(prefix="proteus-", dir=tempfile.gettempdir()))
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[log.fileno()]
        )
        shutil.rmtree(folder)
        try:
            found = {process.pid for process in orphans()}
            assert child.pid in found
            assert os.getpid() not in found
        finally:
            child.kill()
            child.wait()


def test_the_documented_command_is_one(tmp_path: Path) -> None:
    config = load(Path(__file__).parents[3] / "configs" / "mf.yaml")
    clocks, plan = chaos_plan(config, seed=1, faults=12)
    assert sum("join" not in event for event in plan) == 12
    config.changed(clocks=clocks, plan=plan)
