"""A machine that cannot connect to another one, over real sockets: the run goes on without one of them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from agileml.events.run import MachineLost
from agileml.events.terms import Loss
from tests.agileml.process.engine_rig import Rig, reference
from tests.agileml.process.test_engine import MLR, job


def test_the_run_goes_on_without_a_machine_that_does_not_reach_another(tmp_path: Path) -> None:
    machines = {"reliable": 1, "transient": 2, "max": 4}
    values = job({**MLR, "optimizer": {}}, machines=machines, pace={"unit_s": 0.002}, clocks=60)
    rig = Rig(values, tmp_path)
    while rig.head.state().clock < 2:
        time.sleep(0.01)
    there = rig.machines["m2"].address
    rig.machines["m1"].meet(replace(there, ipc=there.ipc + "-nowhere"))
    ran = rig.finish()
    assert ran.sha256 == reference(values)
    (lost,) = ran.of(MachineLost)
    assert lost.loss is Loss.CUT_OFF
    assert "m1 and m2 have not reached each other" in lost.detail
