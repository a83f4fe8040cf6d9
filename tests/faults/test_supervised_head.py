"""The head of a supervised run is killed for real, each of its halves: the run goes on, with the same bits."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import agileml
from agileml.cluster.owned_folder import orphans
from agileml.events.run import RunRestarted
from agileml.events.schema import events_of, of_type
from agileml.runs.status import State, read_status
from tests.faults.supervised_run import LIMIT_S, driver_of, has_saved_since, log_of, until

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

CONFIG = "configs/mlr.yaml"
SETTINGS = ["clocks=3000", "machines.transient=1", "plan=[]"]


def supervise(out: Path, *more: str) -> subprocess.Popen[str]:
    settings = [*SETTINGS, f"checkpoint={{path: {out}/saved, every_s: 0.3}}"]
    words = [word for setting in settings for word in ("--set", setting)]
    command = [
        sys.executable,
        "-m",
        "agileml.cli",
        "run",
        CONFIG,
        "--supervise",
        *words,
        "--out",
        str(out),
        *more,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_driver_dies_and_then_rays_head(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = supervise(out)
    try:
        until(lambda: has_saved_since(out, 0), run)
        driver_of(run).kill()
        until(lambda: has_saved_since(out, 1), run)
        assert read_status(out).state is State.RUNNING
        (gcs,) = [each for each in driver_of(run).children() if each.name().startswith("gcs_server")]
        gcs.kill()
        said, _ = run.communicate(timeout=LIMIT_S)
    finally:
        for process in psutil.Process(run.pid).children() if run.poll() is None else []:
            process.kill()
        run.kill()
    assert run.returncode == 0, said
    restarts = events_of(log_of(out), RunRestarted)
    assert [each.cause for each in restarts] == [
        "its process was ended by SIGKILL",
        "Ray's head has ended",
    ]
    assert all(each.clock > 0 for each in restarts)
    summary = json.loads((out / "summary.json").read_text())
    print(f"at most {summary['restarts']['longest_s']:.1f} s without a clock")
    assert (summary["clocks"], summary["restarts"]["count"]) == (3000, 2)
    wanted = agileml.run(
        CONFIG, sequential=True, clocks=3000, plan=[], out=str(tmp_path / "sequential")
    ).summary["params_sha256"]
    assert summary["params_sha256"] == wanted
    assert read_status(out).state is State.DONE
    assert not orphans()


def test_every_ray_node_with_a_machine_dies_at_once(tmp_path: Path) -> None:
    """Only the checkpoint has the state then, and no process can be started again."""
    out = tmp_path / "run"
    run = supervise(out)
    until(lambda: has_saved_since(out, 0), run)
    machines = [p for p in driver_of(run).children(recursive=True) if "MachineActor" in " ".join(p.cmdline())]
    assert len(machines) == 2, machines
    raylets = [each.parent() for each in machines]
    for process in [*raylets, *machines]:
        assert process is not None
        process.kill()
    said, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    assert "no reliable machine is left" in said
    (restart,) = events_of(log_of(out), RunRestarted)
    assert (restart.cause, restart.clock > 0) == ("the machines that held its state have ended", True)
    wanted = agileml.run(CONFIG, sequential=True, clocks=3000, plan=[], out=str(tmp_path / "sequential"))
    assert json.loads((out / "summary.json").read_text())["params_sha256"] == wanted.summary["params_sha256"]
    assert not orphans()


def test_a_controller_that_does_not_come_back(tmp_path: Path) -> None:
    """Every one that Ray starts is killed, as on a host without memory; the run begins again when that is over."""
    out = tmp_path / "run"
    run = supervise(out)
    until(lambda: has_saved_since(out, 0), run)

    def is_restarted() -> bool:
        for process in psutil.Process(run.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "HeadActor" in " ".join(process.cmdline()):
                    process.kill()
        return bool(of_type(log_of(out), RunRestarted))

    until(is_restarted, run)
    said, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    assert "the controller does not come back" in said or "died 3 times in a row" in said
    causes = {each.cause for each in events_of(log_of(out), RunRestarted)}
    assert "its controller did not come back" in causes
    wanted = agileml.run(CONFIG, sequential=True, clocks=3000, plan=[], out=str(tmp_path / "sequential"))
    assert json.loads((out / "summary.json").read_text())["params_sha256"] == wanted.summary["params_sha256"]
    assert not orphans()


def test_the_same_command_goes_on_after_the_supervisor_was_killed_too(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = supervise(out)
    until(lambda: has_saved_since(out, 0), run)
    driver = driver_of(run)
    run.kill()
    run.communicate()
    psutil.wait_procs([driver], timeout=600)
    assert not driver.is_running()  # it dies with its supervisor
    run = supervise(out)
    said, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    (restart,) = events_of(log_of(out), RunRestarted)
    assert (restart.cause, restart.clock > 0) == ("its supervisor had ended", True)
    assert json.loads((out / "summary.json").read_text())["clocks"] == 3000
    third = supervise(out)
    said, _ = third.communicate(timeout=300)
    assert third.returncode == 2
    assert "holds another run" in said
    assert not orphans()


@pytest.mark.parametrize("seed", range(5))
def test_the_head_dies_at_random_moments(seed: int) -> None:
    """Four kills for each seed, of the driver and of Ray's head in turn, the last one while the run starts again."""
    bench = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_supervise.py"
    command = [sys.executable, str(bench), "--kills", "4", "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bits the same" in done.stdout


def test_bad_input_leaves_nothing(tmp_path: Path) -> None:
    run = supervise(tmp_path / "run", "--address", "127.0.0.1:1")
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 2
    assert (
        said
        == "proteus: address: nobody listens at 127.0.0.1:1 (Connection refused), expected a Ray head node\n"
    )
    assert not (tmp_path / "run").exists()
