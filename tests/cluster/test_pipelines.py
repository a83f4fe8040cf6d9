"""A pipeline on real Ray nodes: one machine is killed, one joins, one gets a notice, and not a bit is another."""

from __future__ import annotations

from pathlib import Path

import pytest

import agileml
from agileml.cluster.local import LocalCluster
from agileml.events.run import MembershipChanged
from agileml.events.schema import events_of
from agileml.events.terms import Cause
from agileml.runs.event_log import EVENTS, read_events
from tests.agileml.process.engine_rig import reference
from tests.faults.killable_fleet import KillableFleet
from tests.faults.test_pipelines import TIED

pytestmark = [pytest.mark.cluster, pytest.mark.slow]  # torch starts on five machines


def test_a_kill_a_join_and_a_notice_on_real_nodes(local_cluster: LocalCluster, tmp_path: Path) -> None:
    plan = [
        {"at_clock": 10, "kill": 1},
        {"at_clock": 20, "join": 1},
        {"at_clock": 30, "notice": 1, "warning_s": 60},
    ]
    values = TIED | {"clocks": 40, "plan": plan}
    out = tmp_path / "run"
    result = agileml.run(values, name="run", fleet=KillableFleet(local_cluster, values), out=str(out))
    assert result.summary["params_sha256"] == reference(values)
    assert result.summary["plan"] == {"planned": 3, "fired": 3, "finished": 3}
    changes = events_of(read_events(out / EVENTS), MembershipChanged)
    assert [(change.trigger.cause, len(change.owners)) for change in changes] == [
        (Cause.START, 3),
        (Cause.FAILURE, 2),
        (Cause.JOIN, 3),
        (Cause.NOTICE, 2),
    ]
    assert [change.redone for change in changes[2:]] == [0, 0]
