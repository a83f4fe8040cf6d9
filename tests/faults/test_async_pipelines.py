"""A pipeline without a flush on machines that come and go: one process that follows the log has the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agileml.config.job import dump, from_values
from agileml.config.random_plan import random_plan
from agileml.config.text import ConfigError
from agileml.events.run import MembershipChanged, RunFinished, StagesArranged
from agileml.runs.event_log import EVENTS, EventLog
from agileml.runs.folder import CONFIG, SUMMARY, FolderError
from agileml.session import run
from agileml.session.one_process import read_replay
from tests.agileml.process.engine_rig import Ran, Rig, reference
from tests.faults.fault_rig import FaultRig
from tests.faults.test_pipelines import FAULTS, JOB, TIED, stages

STASH = JOB | {"plan": FAULTS, "pipeline": {"mode": "stash"}}


def record(rig: Rig, ran: Ran, folder: Path) -> Path:
    """The folder of a run, as a session writes it."""
    folder.mkdir(exist_ok=True)
    partitions = len(ran.of(StagesArranged)) and next(iter(rig.machines.values())).job.layout.partitions
    (folder / CONFIG).write_text(dump(rig.spec.config.model_copy(update={"partitions": partitions})))
    log = EventLog(folder / EVENTS)
    for happened in ran.events:
        log.write(happened.event)
    log.write(RunFinished(1.0))
    log.close()
    (folder / SUMMARY).write_text(json.dumps({"params_sha256": ran.sha256}))
    return folder


def assert_replayed(values: dict[str, Any], folder: Path, out: Path) -> None:
    again = run(values | {"plan": []}, sequential=True, replay=folder, out=str(out))
    assert again.summary["same_as_replayed"] is True and again.code == 0


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    folder = tmp_path_factory.mktemp("stash")
    rig = FaultRig(STASH, folder)
    ran = rig.finish()
    return ran, record(rig, ran, folder / "run")


def test_a_death_a_join_and_a_notice_and_the_same_bits_by_the_log(
    recorded: tuple[Ran, Path], tmp_path: Path
) -> None:
    ran, folder = recorded
    assert stages(ran) == [3, 2, 3, 2]
    assert [change.rolled_back for change in ran.of(MembershipChanged)] == [False, True, False, False]
    assert [change.redone for change in ran.of(MembershipChanged)][2:] == [0, 0], "it has not run empty"
    assert ran.sha256 != reference(STASH), "weights were never stale"
    assert_replayed(STASH, folder, tmp_path / "again")


@pytest.mark.parametrize("mode", ["stash", pytest.param("none", marks=pytest.mark.slow)])
def test_replicas_of_a_stage_have_the_bits_of_the_log(mode: str, tmp_path: Path) -> None:
    model = JOB["model"] | {"arguments": {"size": 8, "batch_norm": True}}
    values = STASH | {"model": model, "slices": 8, "pipeline": {"mode": mode, "replicas": [2, 1]}}
    rig = FaultRig(values, tmp_path)
    ran = rig.finish()
    assert [change.reason.count("units)") for change in ran.of(MembershipChanged)] == [2, 0, 2, 0]
    assert [change.redone for change in ran.of(MembershipChanged)][2:] == [0, 0]
    assert [(len(told.ends), told.overlapping) for told in ran.of(StagesArranged)] == [
        (2, overlapping) for overlapping in ((0,), (), (0,), ())
    ]
    assert_replayed(values, record(rig, ran, tmp_path / "run"), tmp_path / "again")


def test_a_replay_of_another_job_is_one_sentence(recorded: tuple[Ran, Path], tmp_path: Path) -> None:
    folder = recorded[1]
    with pytest.raises(ConfigError, match="pipeline: found"):
        read_replay(folder, from_values(STASH | {"pipeline": {"mode": "none"}}))
    with pytest.raises(ConfigError, match="partitions: found 2, expected 4 as in"):
        read_replay(folder, from_values(STASH | {"partitions": 2}))
    with pytest.raises(ConfigError, match="expected elastic, or a pipeline with mode stash or none"):
        read_replay(record_flush(folder, tmp_path), from_values(STASH | {"pipeline": {"mode": "flush"}}))
    lines = (folder / EVENTS).read_text().splitlines(keepends=True)
    resumed = tmp_path / "resumed"
    resumed.mkdir()
    (resumed / CONFIG).write_text((folder / CONFIG).read_text())
    (resumed / EVENTS).write_text("".join(line for line in lines if '"kind": "stages"' not in line))
    with pytest.raises(FolderError, match="found no stages, expected from clock 0 on"):
        read_replay(resumed, from_values(STASH))


def record_flush(folder: Path, to: Path) -> Path:
    """The same folder, of a run with a flush."""
    (to / CONFIG).write_text((folder / CONFIG).read_text().replace("mode: stash", "mode: flush"))
    (to / EVENTS).write_text((folder / EVENTS).read_text())
    return to


def test_a_resumed_run_cannot_be_verified(tmp_path: Path) -> None:
    values = STASH | {"plan": [], "verify": True, "out": str(tmp_path / "run")}
    saved = tmp_path / "saved"
    saved.mkdir()
    with pytest.raises(ConfigError, match=r"verify: found true with --resume in a pipeline without a flush"):
        run(values, resume=str(saved))


# Two layers that share weights, dropout, and two groups of parameters.
GROUPED = TIED | {"optimizer": {k: v for k, v in TIED["optimizer"].items() if k != "clip_norm"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "pipeline",
    [
        {"mode": "stash"},
        {"mode": "none"},
        {"mode": "stash", "vertical_sync": True},
        {"mode": "stash", "double_buffered": True},
    ],
)
def test_all_that_crosses_cuts(pipeline: dict[str, Any], tmp_path: Path) -> None:
    values = GROUPED | {"plan": FAULTS, "pipeline": pipeline}
    rig = FaultRig(values, tmp_path)
    ran = rig.finish()
    assert stages(ran) == [3, 2, 3, 2]
    assert_replayed(values, record(rig, ran, tmp_path / "run"), tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["stash", "none"])
def test_running_statistics_are_those_of_the_log(mode: str, tmp_path: Path) -> None:
    model = JOB["model"] | {"arguments": {"size": 8, "batch_norm": True}}
    values = JOB | {"model": model, "plan": FAULTS, "pipeline": {"mode": mode}}
    rig = FaultRig(values, tmp_path)
    ran = rig.finish()
    assert_replayed(values, record(rig, ran, tmp_path / "run"), tmp_path / "again")


@pytest.mark.slow
def test_a_checkpoint_is_resumed_by_another_number_of_machines(tmp_path: Path) -> None:
    saved = {"path": str(tmp_path / "saved"), "every_s": 60.0}  # at the end
    before = JOB | {"pipeline": {"mode": "stash"}, "clocks": 6, "checkpoint": saved}
    Rig(before, tmp_path / "before").finish()
    after = before | {"clocks": 12, "machines": {"reliable": 1, "transient": 2, "max": 3}}
    rig = FaultRig(after, tmp_path / "after", resume=saved["path"])
    ran = rig.finish()
    assert stages(ran) == [2] and ran.of(MembershipChanged)[0].base == 6
    folder = record(rig, ran, tmp_path / "run")
    with pytest.raises(FolderError, match="found stages from clock 6 on, expected from clock 0 on"):
        read_replay(folder, from_values(after))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "replicas"), [*((seed, 1) for seed in range(10)), (10, [2, 2]), (11, [1, 3]), (12, [2, 1])]
)
def test_six_faults_of_any_kind(seed: int, replicas: int | list[int], tmp_path: Path) -> None:
    values: dict[str, Any] = GROUPED | {
        "machines": {"reliable": 2, "transient": 3 if replicas == 1 else 4, "max": 8},
        "slices": 8,
        "clocks": 60,
        "pipeline": {"mode": "stash", "replicas": replicas},
    }
    clocks, drawn = random_plan(from_values(values), seed, 6)
    plan = [event.model_dump(exclude_none=True) for event in drawn]
    for event in plan:
        if "freeze" in event:  # a thread cannot be frozen with its connections open
            event["cut"] = event.pop("freeze")
    values |= {"clocks": clocks, "plan": plan}
    rig = FaultRig(values, tmp_path)
    ran = rig.finish()
    assert len(ran.of(MembershipChanged)) > 3
    assert_replayed(values, record(rig, ran, tmp_path / "run"), tmp_path / "again")
