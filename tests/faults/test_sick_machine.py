"""One bad machine is not the end: work that fails on it goes to others, with the same bits; a second machine tells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import agileml
from agileml.application import Application, Array, InputError, Settings, Table, Unit, Updates
from agileml.cluster.local import LocalCluster
from agileml.errors import RunError
from agileml.events.run import MachineQuarantined
from agileml.events.schema import events_of
from agileml.events.terms import Task
from agileml.runs.event_log import EVENTS, read_events
from tests.cluster.shared_fleet import SharedFleet

pytestmark = pytest.mark.cluster

JOB: dict[str, Any] = {
    "application": "package.module:Class",
    "clocks": 30,
    "clocks_per_pass": 2,
    "slices": 4,
    "machines": {"reliable": 2, "transient": 2, "max": 4},
    "stage": 3,  # reliable machines do not compute
}
PROBLEMS: dict[str, BaseException] = {
    "denied": InputError("data.path: s3://bucket/key: access denied"),
    "device": RuntimeError("CUDA error: device-side assert triggered"),
    "memory": MemoryError(),
    "disk": OSError(28, "No space left on device"),
    "exit": SystemExit(3),
    "warm_up": RuntimeError("no kernel image is available for execution on the device"),
    "constructor": RuntimeError("libcudart.so: cannot open shared object file"),
    "reads": ValueError("a truncated file"),
}

# A machine that comes before the reliable one is dealt nothing yet, so it loads when it computes.
LOADS = {Task.LOAD, Task.COMPUTE}
WORKS = {"denied": LOADS, "reads": LOADS, "warm_up": {Task.START}, "constructor": {Task.START}}


class Sick(Application):
    """Fails in the way of `kind` in the first machine's process that gets there, or in each one that `always` does."""

    def __init__(self, kind: str, mark: Path, *, always: bool = False) -> None:
        super().__init__(Settings(slices=4, clocks_per_pass=2))
        self.kind, self.mark, self.always = kind, mark, always

    def with_settings(self, settings: Settings) -> Application:
        """Called once in each process."""
        self._fail("constructor")
        return self

    def _fail(self, *kinds: str) -> None:
        if self.kind not in kinds or "MachineActor" not in " ".join(psutil.Process().cmdline()):
            return
        try:
            self.mark.touch(exist_ok=self.always)
        except FileExistsError:
            return
        raise PROBLEMS[self.kind]

    def warm_up(self) -> None:
        self._fail("warm_up")

    def tables(self) -> list[Table]:
        return [Table("w", 1, 4)]

    def load(self, slice_index: int) -> int:
        self._fail("denied", "reads")
        return slice_index

    def process(self, unit: Unit, items: int, parameters: Mapping[str, Any]) -> Updates:
        if unit.clock == 5:
            self._fail("device", "memory", "disk", "exit")
        return Updates({"w": np.full((1, 4), unit.clock + items, np.float32)}, 1.0, 1)

    def evaluate(self, parameters: Mapping[str, Array]) -> dict[str, float]:
        return {}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("sequential")
    application = Sick("nothing", out / "mark")
    return str(agileml.run(JOB, application, sequential=True, out=str(out / "run")).summary["params_sha256"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROBLEMS)
def test_every_kind_ends_with_the_same_bits_and_one_line(
    kind: str, wanted: str, local_cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    result = agileml.run(
        JOB, Sick(kind, tmp_path / "mark"), fleet=SharedFleet(local_cluster, JOB), out=str(out)
    )
    assert (tmp_path / "mark").exists()
    assert result.summary["params_sha256"] == wanted
    [sick] = events_of(read_events(out / EVENTS), MachineQuarantined)
    assert sick.work in WORKS.get(kind, {Task.COMPUTE})
    assert result.summary["quarantined"] == 1
    said = [
        line for line in capsys.readouterr().err.splitlines() if "its work goes to other machines" in line
    ]
    assert len(said) == 1 and said[0].startswith(f"proteus: machine {sick.machine}: "), said


@pytest.mark.slow
def test_the_same_on_a_second_machine_ends_the_run_with_both_tracebacks(
    local_cluster: LocalCluster, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=r"the same failed on machine m\d before") as failed:
        agileml.run(
            JOB,
            Sick("constructor", tmp_path / "mark", always=True),
            fleet=SharedFleet(local_cluster, JOB),
            out=str(tmp_path / "run"),
        )
    assert failed.value.trace.count("raise PROBLEMS[self.kind]") == 2
