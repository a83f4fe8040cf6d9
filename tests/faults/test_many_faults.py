"""The long versions: twelve faults on real nodes, for CHAOS_SEEDS seeds, and fifty changes that must leak nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agileml.events.run import PlanFinished
from agileml.process.head import HeadState
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import CHAOS_SEEDS, MF, FaultRig, job

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


@pytest.mark.parametrize("seed", range(CHAOS_SEEDS))
@pytest.mark.parametrize("config", ["mf", "mlr"])
def test_twelve_faults(config: str, seed: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agileml.cli", "chaos", f"configs/{config}.yaml", "--seed", str(seed)]
    command += ["--faults", "12", "--set", "clocks=300", "--out", str(tmp_path / "chaos")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    print(done.stdout.splitlines()[-1])
    assert "12 of 12 faults fired" in done.stdout
    assert "same bits, 0 processes left" in done.stdout


OVERLAP = """
application: torch
model: {module: "agileml.apps.torch.models:cnn", arguments: {dropout: 0.25}, batch_size: 128}
data: {kind: large_digits}
optimizer: {kind: adamw, learning_rate: 0.002}
clocks: 200
seed: 1
slices: 4
partitions: 6
overlap: {overlap}
machines: {reliable: 1, transient: 2, max: 4}
"""


@pytest.mark.parametrize("seed", range(CHAOS_SEEDS))
@pytest.mark.parametrize("overlap", ["true", "batches"])
def test_twelve_faults_while_parameters_are_on_their_way(overlap: str, seed: int, tmp_path: Path) -> None:
    (tmp_path / "overlap.yaml").write_text(OVERLAP.replace("{overlap}", overlap))
    command = [
        sys.executable,
        "-m",
        "agileml.cli",
        "chaos",
        str(tmp_path / "overlap.yaml"),
        "--seed",
        str(seed),
    ]
    command += ["--faults", "12", "--out", str(tmp_path / "chaos")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "12 of 12 faults fired" in done.stdout
    assert "same bits, 0 processes left" in done.stdout


CHANGES = 50


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def test_fifty_changes_leak_no_descriptor_and_no_thread(tmp_path: Path) -> None:
    """In one process, where every machine's and the controller's descriptors are counted together."""
    values = job(MF, clocks=300, machines={"reliable": 1, "transient": 3, "max": 8})
    process = psutil.Process()
    cut = {"at_clock": 0, "cut": 1, "seconds": 0.05}
    values["plan"] = [{**cut, "at_clock": 4 * index + 4} for index in range(CHANGES)]
    seen: dict[int, int] = {}
    quiet = [0]

    def look(rig: FaultRig, state: HeadState) -> None:
        quiet[0] += sum(isinstance(each.event, PlanFinished) for each in state.events)
        seen[quiet[0]] = process.num_fds()

    before = shared_memory()
    ran = FaultRig(values, tmp_path, look).finish()
    assert ran.sha256 == reference(values)
    assert quiet[0] == CHANGES
    early, late = max(seen[n] for n in range(3, 8)), max(seen[n] for n in range(CHANGES - 5, CHANGES))
    print(f"descriptors: {early} after 3 to 7 changes, {late} after {CHANGES - 5} to {CHANGES - 1}")
    assert late <= early + 8
    assert shared_memory() <= before
