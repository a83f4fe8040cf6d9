"""A run with supersteps once more in one process: its bits, and a sentence where the log is not of this job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from agileml.application import Application, Table, Unit, Updates
from agileml.config.job import dump, from_values, load
from agileml.config.text import ConfigError
from agileml.events.observed import Evaluated
from agileml.events.run import ClockDone, CutCommitted, RunFinished, RunStopped, StepsLogged
from agileml.events.sums import CutsCommitted
from agileml.process.spec import RunSpec
from agileml.runs.event_log import EVENTS, EventLog, read_events
from agileml.runs.folder import FolderError
from agileml.runs.model_file import params_sha256
from agileml.runs.report.market import endings
from agileml.session import run
from agileml.session.one_process import check_verify, end_of, read_replay, train_again
from tests.agileml.process.engine_rig import Rig
from tests.agileml.process.test_engine import MLR, job

VALUES = job(
    {**MLR, "optimizer": {}},
    consistency={"kind": "elastic", "range": 4},
    clocks=6,
    plan=[{"at_clock": 3, "join": 1}],
)


class Measured(Application):
    """One number, which every unit measures in every second clock. What a framework is told of its optimizer."""

    told: ClassVar[list[int]] = []

    def tables(self) -> list[Table]:
        return [Table("w", 1, 1)]

    def load(self, slice_index: int) -> int:
        return slice_index

    def process(self, unit: Unit, items: int, parameters: Mapping[str, Any]) -> Updates:
        w = float(parameters["w"][0, 0])
        due = unit.clock % 2 == 1
        metrics = {"error": (2 * (1 - w), 2.0)} if due else {}
        return Updates({"w": np.full((1, 1), (w - 1) / 4, np.float32)}, 1 - w, 1, metrics)

    def metrics(self) -> list[str]:
        return ["error"]

    def optimizer_state(
        self, slots: Sequence[Mapping[str, Any]], optimizer: Mapping[str, Any], clocks: int, factor: float
    ) -> None:
        self.told.append(clocks)


STEPWISE = {
    "application": "tests.agileml.session.test_one_process:Measured",
    "clocks": 9,
    "slices": 4,
    "machines": {"reliable": 1, "transient": 1, "max": 2},
    "optimizer": {"kind": "adam", "learning_rate": 0.01},
    "consistency": {"kind": "elastic"},
}


def test_one_process_evaluates_supersteps_and_counts_their_steps(tmp_path: Path) -> None:
    run(STEPWISE, sequential=True, out=str(tmp_path / "whole"))
    found = [
        each.event for each in read_events(tmp_path / "whole" / EVENTS) if isinstance(each.event, Evaluated)
    ]
    assert [done.clock for done in found] == [1, 3, 5, 7]
    errors = [done.metrics["error"] for done in found]
    assert errors == sorted(errors, reverse=True) and 0 < errors[-1] < errors[0] < 1
    assert Measured.told.pop() == 9 * 4, "a step for each minibatch"
    rule = {"metric": "error", "mode": "max", "patience": 2}
    stopped = run({**STEPWISE, "early_stopping": rule}, sequential=True, out=str(tmp_path / "stopped"))
    assert stopped.summary["clocks"] == 6 and Measured.told.pop() == 6 * 4
    run({**STEPWISE, "consistency": {"kind": "bsp"}}, sequential=True, out=str(tmp_path / "bsp"))
    assert Measured.told.pop() == 9


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run, and its params_sha256."""
    folder = tmp_path_factory.mktemp("recorded")
    rig = Rig(VALUES, folder)
    ran = rig.finish()
    partitions = next(iter(rig.machines.values())).job.layout.partitions
    config = rig.spec.config.model_copy(update={"partitions": partitions})
    (folder / "config.yaml").write_text(dump(config))
    log = EventLog(folder / EVENTS)
    for happened in ran.events:
        log.write(happened.event)
    log.write(RunFinished(1.0))
    log.close()
    (folder / "summary.json").write_text(json.dumps({"params_sha256": ran.sha256}))
    return folder, ran.sha256


def test_one_process_computes_the_bits_of_the_log(recorded: tuple[Path, str], tmp_path: Path) -> None:
    folder, digest = recorded
    result = run(VALUES, sequential=True, replay=folder, out=str(tmp_path / "again"))
    assert (result.code, result.summary["params_sha256"], result.summary["same_as_replayed"]) == (
        0,
        digest,
        True,
    )
    clocks = [
        done.event for done in read_events(tmp_path / "again" / EVENTS) if isinstance(done.event, ClockDone)
    ]
    assert [done.clock for done in clocks] == list(range(1, 7))


def test_a_resumed_run_cannot_be_verified_by_its_log() -> None:
    """It would end with an error after its last clock: the log has no step from before the checkpoint."""
    found = (
        "verify: found true with --resume and supersteps .elastic., expected false: the log of a resumed run"
    )
    with pytest.raises(ConfigError, match=found):
        check_verify(from_values({**VALUES, "verify": True}))
    check_verify(from_values(VALUES))
    check_verify(from_values({**VALUES, "consistency": {"kind": "bsp"}, "verify": True}))


def test_without_a_log_it_is_what_one_machine_would_do(recorded: tuple[Path, str], tmp_path: Path) -> None:
    alone = run(VALUES, sequential=True, out=str(tmp_path / "alone"))
    again = run({**VALUES, "partitions": 3}, sequential=True, out=str(tmp_path / "again"))
    assert alone.summary["params_sha256"] == again.summary["params_sha256"] != recorded[1]
    assert alone.summary["clocks"] == 6


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"seed": 7}, "seed: found 7, expected 0 as in"),
        ({"clocks": 7}, "clocks: found 7, expected 6 as in"),
        ({"consistency": {"kind": "elastic", "range": 5}}, "consistency: found"),
        ({"consistency": {"kind": "bsp"}}, "consistency: found"),
    ],
)
def test_another_job_is_a_sentence(
    changes: Mapping[str, Any], found: str, recorded: tuple[Path, str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        read_replay(recorded[0], from_values({**VALUES, **changes}))
    assert found in str(raised.value)


def test_a_folder_without_the_steps_is_a_sentence(recorded: tuple[Path, str], tmp_path: Path) -> None:
    config = from_values(VALUES)
    with pytest.raises(FolderError, match=r"--replay: .* holds no config.yaml, expected the folder of a run"):
        read_replay(tmp_path, config)
    (tmp_path / "config.yaml").write_text((recorded[0] / "config.yaml").read_text())
    lines = (recorded[0] / EVENTS).read_text().splitlines(keepends=True)
    (tmp_path / EVENTS).write_text("".join(line for line in lines if '"kind": "steps"' not in line))
    with pytest.raises(FolderError, match="found no step 0 of partition 0"):
        read_replay(tmp_path, config)
    (tmp_path / EVENTS).write_text(lines[0])
    with pytest.raises(FolderError, match="holds no cut"):
        read_replay(tmp_path, config)


@pytest.mark.parametrize("kind", ["elastic", "bsp"])
def test_a_comparison_that_is_told_to_stop_is_left_out(kind: str, recorded: tuple[Path, str]) -> None:
    """It may take as long as all machines together took; the run has its result and writes its summary."""
    folder = recorded[0]
    config = load(folder / "config.yaml") if kind == "elastic" else from_values(job(MLR, clocks=6))
    spec = RunSpec("run", config)
    application = spec.build()
    rules = spec.job(application)
    whole = train_again(application, rules, config, None, folder / EVENTS, lambda: False)
    assert whole is not None
    if kind == "elastic":
        assert params_sha256(whole) == recorded[1]
    asked = iter((False, False, True))
    assert train_again(application, rules, config, None, folder / EVENTS, lambda: next(asked)) is None
    assert not list(asked)
    assert endings({"same_as_sequential": None}, 6) == []


def test_steps_that_a_full_disk_has_cost_leave_the_comparison_out(
    recorded: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run is over then: an error would cost its summary and its report."""
    lines = (recorded[0] / EVENTS).read_text().splitlines(keepends=True)
    first = next(at for at, line in enumerate(lines) if '"kind": "steps"' in line)
    (tmp_path / EVENTS).write_text("".join([*lines[:first], *lines[first + 1 :]]))
    config = load(recorded[0] / "config.yaml")
    spec = RunSpec("run", config)
    application = spec.build()
    log = tmp_path / EVENTS
    assert train_again(application, spec.job(application), config, None, log, lambda: False) is None
    assert f"verify: {log}: found no step" in capsys.readouterr().err


def test_the_result_of_a_run_is_that_of_its_last_cut(recorded: tuple[Path, str]) -> None:
    log = read_events(recorded[0] / EVENTS)
    assert end_of(log, 6) == 6
    assert end_of([each for each in log if not isinstance(each.event, RunFinished)], 6) == 6
    cuts = [each for each in log if isinstance(each.event, CutCommitted | StepsLogged)][:4]
    assert end_of(cuts, 6) == max(
        (c.event.clock for c in cuts if isinstance(c.event, CutCommitted)), default=None
    )
    later = type(log[0])(700.0, CutsCommitted(2, 7, 0.1))  # in a run that is no longer young
    assert end_of([*cuts, later], 8) == 7
    stopped = type(log[0])(0.0, RunStopped(2))
    assert end_of([*log, stopped], 6) == 2


def test_arguments_in_place_of_keys_of_a_file_have_the_defaults_that_follow_them(tmp_path: Path) -> None:
    """As `--set` has them: nobody wrote `deterministic: true` or `slices: 8`, so nobody can be told to change it."""
    file = tmp_path / "job.yaml"
    file.write_text("application: mlr\ndata: {kind: digits}\nclocks: 2\n")
    out, machines = str(tmp_path / "run"), {"max": 16}
    run(file, sequential=True, out=out, exchange="allreduce", machines=machines)
    config = load(tmp_path / "run" / "config.yaml")
    assert (config.deterministic, config.slices) == (False, 16)
    with pytest.raises(ConfigError, match=r"^argument: machines.max: found 0, expected at least 1"):
        run(file, sequential=True, out=out, machines={"max": 0})
