"""What a config says of machines by name holds after a restart of the head, where machines have other names; and what
of it does not fit the application."""

from __future__ import annotations

import pytest

from agileml.application import Application, Settings, Table, Unit, Updates
from agileml.config.job import ConfigError, from_values
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


class Wide(Application):
    """A table of more rows than 32 bits number."""

    def tables(self) -> list[Table]:
        return [Table("wide", 2**33, 1, sparse=True)]

    def load(self, slice_index: int) -> None: ...

    def process(self, unit: Unit, items: None, parameters: object) -> Updates:
        return Updates({})


def test_a_partition_has_no_more_rows_than_it_can_number() -> None:
    values = {"application": "rows:Wide", "clocks": 9, "partitions": 4}
    with pytest.raises(ConfigError, match=r"found 4 with the table 'wide' of 8589934592 rows, .* at least 5"):
        RunSpec("run", from_values(values)).job(Wide(Settings()))
    enough = RunSpec("run", from_values(values | {"partitions": 5}))
    assert enough.job(Wide(Settings())).layout.partitions == 5
