"""Random plans are such that the job survives them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agileml.config.job import JobConfig, from_values, load
from agileml.config.random_plan import random_plan
from agileml.config.text import ConfigError
from tests.thorough import examples

MLR = {"application": "mlr", "data": {"kind": "digits"}}


def config_of(reliable: int, transient: int, most: int, *, checkpoints: bool) -> JobConfig:
    machines = {"reliable": reliable, "transient": transient, "max": most}
    values = {**MLR, "clocks": 50, "machines": machines, "slices": 64}
    return from_values(values | ({"checkpoint": {"path": "somewhere"}} if checkpoints else {}))


@settings(deadline=None, derandomize=True, max_examples=examples(150))
@given(
    seed=st.integers(0, 10**6),
    faults=st.integers(1, 30),
    reliable=st.integers(1, 3),
    transient=st.integers(0, 5),
    spare=st.integers(0, 4),
    checkpoints=st.booleans(),
)
def test_a_plan_is_one_that_the_job_survives(
    seed: int, faults: int, reliable: int, transient: int, spare: int, checkpoints: bool
) -> None:
    assume(transient + spare)
    config = config_of(reliable, transient, reliable + transient + spare, checkpoints=checkpoints)
    clocks, plan = random_plan(config, seed, faults)
    assert (clocks, plan) == random_plan(config, seed, faults)
    assert sum(event.kind != "join" for event in plan) == faults
    at = [event.at_clock for event in plan]
    assert at == sorted(at)
    assert at[0] >= 1
    assert at[-1] < clocks
    assert clocks >= config.clocks
    config.changed(clocks=clocks, plan=plan)  # refuses what cannot be carried out
    assert checkpoints or not any(event.kind == "disk_full" for event in plan)
    assert sum(event.kind == "kill_reliable" for event in plan) < reliable


def test_faults_need_room_for_a_transient_machine() -> None:
    with pytest.raises(
        ConfigError, match=r"machines\.max: found 3 with as many reliable machines, expected more"
    ):
        random_plan(config_of(3, 0, 3, checkpoints=False), seed=0, faults=1)


def test_the_documented_job_survives_its_plan() -> None:
    config = load(Path(__file__).parents[3] / "configs" / "mf.yaml")
    clocks, plan = random_plan(config, seed=1, faults=12)
    assert sum(event.kind != "join" for event in plan) == 12
    config.changed(clocks=clocks, plan=plan)
