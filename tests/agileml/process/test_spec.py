"""What a config says of machines by name holds after a restart of the head, where machines have other names."""

from __future__ import annotations

import pytest

from agileml.config.job import from_values
from agileml.core.protocol.plan import PlannedFault
from agileml.events.terms import Tier
from agileml.process.spec import RunSpec


@pytest.mark.parametrize("restarts", [0, 1])
def test_speeds_are_those_of_the_machine_that_started_as_this_one(restarts: int) -> None:
    values = {
        "application": "mlr",
        "clocks": 9,
        "pace": {"speeds": {"m2": 0.25}},
        "plan": [{"at_clock": 3, "speed": 0.5, "machine": "m2"}],
    }
    spec = RunSpec("run", from_values(values), restarts=restarts)
    name = spec.machine_name(2)
    assert spec.speed_of(name, Tier.TRANSIENT) == 0.25
    (planned,) = spec.plan()
    assert isinstance(planned, PlannedFault)
    assert (planned.machine, planned.factor) == (name, 2.0)
