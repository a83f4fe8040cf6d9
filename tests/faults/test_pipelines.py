"""Stages of a pipeline on machines that come and go: one result, that of one process, whoever holds which layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agileml.checkpoints.errors import CheckpointError
from agileml.config.job import from_values
from agileml.config.random_plan import random_plan
from agileml.events.run import ClockDone, MembershipChanged
from agileml.process.head import HeadState
from tests.agileml.process.engine_rig import Rig, reference
from tests.faults.fault_rig import FaultRig

JOB: dict[str, Any] = {
    "application": "torch",
    "data": {"kind": "digits", "shape": [1, 8, 8]},
    "model": {
        "module": "agileml.apps.torch.models:cnn",
        "arguments": {"size": 8, "dropout": 0.25},
        "batch_size": 64,
    },
    "optimizer": {"kind": "adam", "learning_rate": 0.01},
    "clocks": 15,
    "slices": 4,
    "machines": {"reliable": 1, "transient": 3, "max": 4},
    "cuts": {"every_s": 0.05, "max_clocks": 4},
    "pipeline": {"mode": "flush"},
}
FAULTS = [
    {"at_clock": 4, "kill": 1},
    {"at_clock": 7, "join": 1},
    {"at_clock": 10, "notice": 1, "warning_s": 30},
]


def stages(ran: Any) -> list[int]:
    return [len(change.owners) for change in ran.of(MembershipChanged)]


# Two layers that share weights, dropout, two groups of parameters, and a limit of the norm.
TIED = JOB | {
    "data": {"kind": "digits"},
    "model": {"module": "tests.faults.tied_net:make", "batch_size": 64},
    "optimizer": {
        "kind": "adamw",
        "learning_rate": 0.01,
        "clip_norm": 0.5,
        "groups": [{"parameters": ["*.bias", "*norm*"], "weight_decay": 0.0, "learning_rate": 0.02}],
    },
}


@pytest.mark.parametrize("order", ["1f1b", pytest.param("zero-bubble", marks=pytest.mark.slow)])
def test_a_death_a_join_and_a_notice_change_the_stages_and_not_a_bit(order: str, tmp_path: Path) -> None:
    values = JOB | {"plan": FAULTS, "pipeline": {"mode": "flush", "order": order}}
    ran = FaultRig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    assert stages(ran) == [3, 2, 3, 2]


def test_replicas_of_a_stage_change_not_a_bit(tmp_path: Path) -> None:
    """Also where running statistics are counted at several machines."""
    model = JOB["model"] | {"arguments": {"size": 8, "dropout": 0.25, "batch_norm": True}}
    values = JOB | {"model": model, "plan": FAULTS, "slices": 8}
    ran = FaultRig(values | {"pipeline": {"mode": "flush", "replicas": [2, 1]}}, tmp_path).finish()
    assert ran.sha256 == reference(values)
    first, killed, joined, left = (change.reason for change in ran.of(MembershipChanged))
    assert "at m1 (4 units) and m2 (4 units), " in first and "units" in joined
    assert "units" not in killed and "units" not in left
    assert [change.redone for change in ran.of(MembershipChanged)][2:] == [0, 0]


@pytest.mark.slow
def test_a_slow_replica_has_fewer_units_after_the_next_change(tmp_path: Path) -> None:
    plan = [{"at_clock": 2, "machine": "m1", "speed": 0.1}, {"at_clock": 30, "join": 1}]
    machines = {"reliable": 1, "transient": 3, "max": 8}
    pipeline = {"mode": "flush", "stages": 1, "replicas": 4}
    values = TIED | {"clocks": 34, "slices": 16, "machines": machines, "plan": plan, "pipeline": pipeline}
    ran = FaultRig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    shares = [re.findall(r"(m\d) \((\d+) units\)", each.reason) for each in ran.of(MembershipChanged)]
    before, after = dict(shares[0]), dict(shares[1])
    assert int(before["m1"]) >= 5 and int(after["m1"]) < min(int(after["m2"]), int(after["m3"])), shares


@pytest.mark.slow
def test_the_planner_chooses_anew_at_every_change(tmp_path: Path) -> None:
    values = JOB | {"plan": FAULTS, "slices": 8, "pipeline": {"mode": "flush", "replicas": "auto"}}
    ran = FaultRig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    reasons = [change.reason for change in ran.of(MembershipChanged)]
    assert len(reasons) == 4 and all("(planned " in reason for reason in reasons)


@pytest.mark.slow
def test_pipelines_side_by_side_change_not_a_bit(tmp_path: Path) -> None:
    """With three machines at a stage no share of 16 units is a whole subtree."""
    pipeline = {"mode": "flush", "order": "zero-bubble", "stages": 2, "replicas": 3}
    machines = {"reliable": 1, "transient": 6, "max": 8}
    values = TIED | {"plan": FAULTS, "machines": machines, "slices": 16}
    ran = FaultRig(values | {"pipeline": pipeline}, tmp_path).finish()
    assert ran.sha256 == reference(values)
    assert [change.reason.count("units)") for change in ran.of(MembershipChanged)] == [6, 5, 6, 5]
    assert [change.redone for change in ran.of(MembershipChanged)][2:] == [0, 0]


@pytest.mark.slow
def test_batch_norm_has_the_bits_of_the_job_without_stages(tmp_path: Path) -> None:
    """Running statistics move with the layers, and a checkpoint has them."""
    arguments = {"size": 8, "batch_norm": True}
    saved = {"path": str(tmp_path / "saved"), "every_s": 60.0}  # at the end
    values = JOB | {"model": JOB["model"] | {"arguments": arguments}, "plan": FAULTS, "checkpoint": saved}
    ran = FaultRig(values, tmp_path / "first").finish()
    assert stages(ran) == [3, 2, 3, 2]
    without = {key: value for key, value in values.items() if key not in ("pipeline", "plan")}
    assert ran.sha256 == reference(values) == reference(without)
    longer = values | {"plan": [], "clocks": 20}
    assert FaultRig(longer, tmp_path / "second", resume=saved["path"]).finish().sha256 == reference(longer)


def test_a_checkpoint_is_resumed_by_another_number_of_machines(tmp_path: Path) -> None:
    """With all that crosses cuts: tied weights, the norm of all gradients, groups, dropout."""
    saved = {"path": str(tmp_path / "saved"), "every_s": 60.0}  # at the end
    before = TIED | {"clocks": 6, "checkpoint": saved}
    Rig(before, tmp_path / "before").finish()
    fewer = {"reliable": 1, "transient": 2, "max": 3}
    after = TIED | {
        "clocks": 12,
        "machines": fewer,
        "checkpoint": saved,
        "plan": [{"at_clock": 9, "kill": 1}],
    }
    ran = FaultRig(after, tmp_path / "after", resume=saved["path"]).finish()
    assert stages(ran) == [2, 1]
    assert ran.of(MembershipChanged)[0].base == 6
    assert ran.sha256 == reference(after)
    without = {key: value for key, value in after.items() if key not in ("pipeline", "plan")}
    with pytest.raises(CheckpointError, match="cut between layers"):
        Rig(without, tmp_path / "refused", resume=saved["path"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "replicas"),
    [*((seed, 1) for seed in range(10)), *((seed, 2) for seed in range(10, 14)), (14, [2, 1]), (15, [1, 3])],
)
def test_six_faults_of_any_kind(seed: int, replicas: int | list[int], tmp_path: Path) -> None:
    machines = {"reliable": 2, "transient": 3 if replicas == 1 else 4, "max": 8}
    values = TIED | {"machines": machines, "slices": 8, "clocks": 60}
    if replicas != 1:
        most = {"stages": 2} if replicas == 2 else {}
        values |= {"pipeline": {"mode": "flush", "replicas": replicas} | most}
    clocks, drawn = random_plan(from_values(values), seed, 6)
    plan = [event.model_dump(exclude_none=True) for event in drawn]
    for event in plan:
        if "freeze" in event:  # a thread cannot be frozen with its connections open
            event["cut"] = event.pop("freeze")
    values |= {"clocks": clocks, "plan": plan}
    ran = FaultRig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    assert len(ran.of(MembershipChanged)) > 3


def test_a_stage_that_is_slowed_down_is_slower(tmp_path: Path) -> None:
    plan = [{"at_clock": 2, "slow": 1, "factor": 1000.0, "seconds": 2.0}]  # 2 s with its first action
    machines = {"reliable": 1, "transient": 2, "max": 4}
    values = TIED | {"clocks": 100_000, "plan": plan, "machines": machines}

    def watch(rig: FaultRig, state: HeadState) -> None:
        if any(
            isinstance(each.event, ClockDone) and (each.event.seconds or 0.0) > 1.5 for each in state.events
        ):
            rig.ask_to_stop()

    slow = [
        each for each in FaultRig(values, tmp_path, watch).finish().of(ClockDone) if (each.seconds or 0) > 1.5
    ]
    assert slow and slow[0].clock > 2
