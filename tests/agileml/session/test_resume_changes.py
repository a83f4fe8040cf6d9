"""A resume that is told to change the optimizer goes on with the new settings, and another controller knows of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agileml
from agileml.checkpoints.errors import CheckpointError
from agileml.config.text import ConfigError
from agileml.events.run import MembershipChanged
from tests.agileml.process.engine_rig import Rig, reference
from tests.faults.fault_rig import MLR, FaultRig, job

BEFORE, AFTER = 20, 40


def halved(clock: int) -> float:
    """The factor of a rate that is halved where the run is resumed."""
    return 1.0 if clock < BEFORE else 0.5


def values(place: Path, rate: float, **more: Any) -> dict[str, Any]:
    optimizer = {"kind": "adam", "learning_rate": rate}
    saved = {"path": str(place), "every_s": 60.0}  # at the end
    return job(MLR, checkpoint=saved, optimizer=optimizer, **more)


def one_run() -> str:
    """The bits of one process that halves the rate in the middle."""
    schedule = {"kind": "function", "function": f"{__name__}:halved"}
    return reference(
        job(MLR, optimizer={"kind": "adam", "learning_rate": 0.05, "schedule": schedule}, clocks=AFTER)
    )


def test_the_rate_may_be_another_from_the_checkpoint_on(tmp_path: Path) -> None:
    place = tmp_path / "saved"
    Rig(values(place, 0.05, clocks=BEFORE), tmp_path / "first").finish()
    again = values(place, 0.025, clocks=AFTER)
    with pytest.raises(CheckpointError, match=r"optimizer.learning_rate: found 0.025, expected 0.05"):
        Rig(again, tmp_path / "refused", resume=str(place))
    ran = Rig(again, tmp_path / "second", resume=str(place), may_change_optimizer=True).finish()
    assert ran.sha256 == one_run()
    # The checkpoints that it wrote have the new rate: another resume need not be told.
    assert Rig(again, tmp_path / "third", resume=str(place)).finish().sha256 == ran.sha256


@pytest.mark.slow
def test_a_new_controller_goes_on_with_the_new_settings(tmp_path: Path) -> None:
    place = tmp_path / "saved"
    Rig(values(place, 0.05, clocks=BEFORE), tmp_path / "first").finish()
    plan = [{"at_clock": 24, "kill_controller": True}, {"at_clock": 26, "kill_reliable": 1}]
    more = {"plan": plan, "stage": 1, "machines": {"reliable": 2, "transient": 1, "max": 8}}
    again = values(place, 0.025, clocks=AFTER) | more
    ran = FaultRig(again, tmp_path, resume=str(place), may_change_optimizer=True).finish()
    back = [change.base for change in ran.of(MembershipChanged) if change.rolled_back]
    assert back and set(back) == {BEFORE}
    assert ran.sha256 == one_run()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "optimizer: found --change-optimizer without --resume"),
        ({"resume": "somewhere", "verify": True}, "verify: found true with --change-optimizer"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        agileml.run(job(MLR), change_optimizer=True, **settings)
