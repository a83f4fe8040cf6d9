"""Supersteps over real sockets in one process: each minibatch once, through joins and notices, and the log's bits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agileml.core.stepwise import Stepwise, steps_of
from agileml.events.run import ClockDone, MembershipChanged, StepsLogged, SuperstepPlanned
from agileml.runs.model_file import params_sha256
from tests.agileml.process.engine_rig import Ran, Rig
from tests.agileml.process.test_engine import MF, MLR, PLAN, job

ELASTIC = {"consistency": {"kind": "elastic", "range": 8}}


def by_the_log(rig: Rig, ran: Ran) -> str:
    """The params_sha256 of one process that takes the steps of the log."""
    application = rig.spec.build()
    rules = rig.spec.job(application)
    steps = steps_of(ran.of(StepsLogged), (rules.clocks * rules.units,) * rules.layout.partitions)
    return params_sha256(Stepwise(application, rules.optimizer, rules.parts, steps).train().tables)


@pytest.mark.parametrize(
    "base",
    [
        {**MF, "optimizer": {"kind": "momentum", "learning_rate": 0.0001}},
        {**MLR, "optimizer": {"learning_rate": 0.5}},
    ],
    ids=["mf", "mlr"],
)
def test_the_log_has_the_bits_of_a_run_in_which_machines_come_and_go(
    base: Mapping[str, Any], tmp_path: Path
) -> None:
    rig = Rig(job(base, plan=PLAN, **ELASTIC), tmp_path)
    ran = rig.finish()
    assert ran.sha256 == by_the_log(rig, ran)
    views = ran.of(MembershipChanged)
    assert len(views) >= 5 and not any(view.rolled_back or view.redone for view in views)
    clocks = ran.of(ClockDone)
    assert [clock.clock for clock in clocks] == list(range(1, 31))
    assert np.mean([clock.loss for clock in clocks[-4:]]) < 0.8 * np.mean(
        [clock.loss for clock in clocks[:4]]
    )


def test_a_slow_machine_gets_fewer_minibatches_and_nobody_more_than_the_range(tmp_path: Path) -> None:
    machines = {"reliable": 1, "transient": 2, "max": 4}
    pace = {"unit_s": 0.03, "speeds": {"m0": 0.25}}
    rig = Rig(job({**MLR, "optimizer": {}}, machines=machines, pace=pace, clocks=20, **ELASTIC), tmp_path)
    ran = rig.finish()
    assert ran.sha256 == by_the_log(rig, ran)
    planned = ran.of(SuperstepPlanned)
    assert planned[0].units == {"m0": 1, "m1": 1, "m2": 1} and "not measured yet" in planned[0].reason
    assert max(max(plan.units.values()) for plan in planned) <= 8
    slow, fast = rig.machines["m0"].node.spent.units, rig.machines["m1"].node.spent.units
    assert 0 < slow < 0.6 * fast, (slow, fast)
