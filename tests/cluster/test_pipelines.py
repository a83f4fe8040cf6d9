"""A pipeline on real Ray nodes that are killed, join and get a notice: one process, or the replay of the log, has its
bits."""

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
from tests.faults.test_async_pipelines import GROUPED
from tests.faults.test_pipelines import TIED

pytestmark = [pytest.mark.cluster, pytest.mark.slow]  # torch starts on five machines


@pytest.mark.parametrize("mode", ["flush", "stash"])
def test_a_kill_a_join_and_a_notice_on_real_nodes(
    mode: str, local_cluster: LocalCluster, tmp_path: Path
) -> None:
    plan = [
        {"at_clock": 10, "kill": 1},
        {"at_clock": 20, "join": 1},
        {"at_clock": 30, "notice": 1, "warning_s": 60},
    ]
    job = TIED if mode == "flush" else GROUPED
    values = job | {"clocks": 40, "plan": plan, "pipeline": {"mode": mode}}
    out = tmp_path / "run"
    result = agileml.run(values, name="run", fleet=KillableFleet(local_cluster, values), out=str(out))
    if mode == "flush":
        assert result.summary["params_sha256"] == reference(values)
    else:
        again = agileml.run(values, name="again", sequential=True, replay=out, out=str(tmp_path / "again"))
        assert again.summary["same_as_replayed"] is True
    assert result.summary["plan"] == {"planned": 3, "fired": 3, "finished": 3}
    changes = events_of(read_events(out / EVENTS), MembershipChanged)
    assert [(change.trigger.cause, len(change.owners)) for change in changes] == [
        (Cause.START, 3),
        (Cause.FAILURE, 2),
        (Cause.JOIN, 3),
        (Cause.NOTICE, 2),
    ]
    assert [change.redone for change in changes[2:]] == [0, 0]


def test_two_replicas_and_a_stage_behind_them_on_real_nodes(
    local_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Three machines as [2, 1]: one is killed, so that two stages of one are left, and another joins."""
    plan = [{"at_clock": 10, "kill": 1}, {"at_clock": 20, "join": 1}]
    values = TIED | {"clocks": 30, "plan": plan, "pipeline": {"mode": "flush", "replicas": [2, 1]}}
    out = tmp_path / "run"
    result = agileml.run(values, name="run", fleet=KillableFleet(local_cluster, values), out=str(out))
    assert result.summary["params_sha256"] == reference(values)
    changes = events_of(read_events(out / EVENTS), MembershipChanged)
    causes = [(change.trigger.cause, change.reason.count("units)")) for change in changes]
    assert causes == [(Cause.START, 2), (Cause.FAILURE, 0), (Cause.JOIN, 2)]
    assert changes[2].redone == 0
