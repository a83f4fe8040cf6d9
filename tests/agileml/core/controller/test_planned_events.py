"""Planned joins and notices: each at its clock, once, also over a restart."""

from __future__ import annotations

import pytest

from agileml.core.protocol.inputs import (
    NodeDown,
    Received,
    Tick,
)
from agileml.core.protocol.messages import (
    Announce,
    Failure,
    Limit,
)
from agileml.core.protocol.plan import PlannedJoin, PlannedNotice
from agileml.events.run import (
    PlanFinished,
    PlanFired,
    Warned,
)
from agileml.events.terms import Loss, Task
from tests.agileml.core.fixtures import make_job
from tests.agileml.core.fixtures import scripts as scripts


def test_a_plan_is_exact(scripts):
    plan = [PlannedJoin(3, 2), PlannedNotice(6, 1, 60.0), PlannedNotice(9, None, 30.0)]
    script = scripts(make_job(clocks=12), plan, expected=4)
    script.up("r0", "t1")
    script.up("t2", "t3", admitted=False)
    assert script.view.members == ("r0", "t1")
    assert script.controller.limit == 3
    script.wait(1.0)
    assert script.view.members == ("r0", "t1"), "nobody joins before the clock"
    script.reach(3)
    script.wait(0.4)
    assert set(script.view.members) == {"r0", "t1", "t2", "t3"}
    assert script.controller.limit == 6
    script.reach(6)
    script.wait(0.4)
    assert len(script.view.members) == 3
    assert script.controller.limit == 9
    script.reach(9)
    script.wait(0.4)
    assert script.view.members == ("r0",)
    assert script.controller.limit == 12
    assert [type(event) for event in script.events_of(PlanFired | PlanFinished)] == [
        PlanFired,
        PlanFinished,
    ] * 3


def test_training_waits_at_the_clock_of_an_event_whose_machines_are_late(scripts):
    script = scripts(make_job(clocks=12), [PlannedJoin(3, 1)])
    script.up("r0")
    script.reach(3)
    script.wait(5.0)
    assert script.controller.limit == 3
    script.up("t1", admitted=False)
    script.wait(0.4)
    assert "t1" in script.view.members
    assert script.controller.limit == 12
    assert script.told("r0", Limit)[-1].limit == 12 or script.told("r0", Announce)[-1].limit == 12


@pytest.mark.parametrize(
    "loss", [NodeDown("t3", Loss.NODE_GONE), Received("t3", Failure("no data", "", Task.LOAD, 0, 1))]
)
def test_a_join_whose_machine_has_died_or_was_sent_away_holds_the_run_no_longer_than_it_may_wait(
    scripts, loss
):
    script = scripts(make_job(clocks=12), [PlannedJoin(3, 2)], expected=4, ready_limit_s=30.0)
    script.up("r0", "t1")
    script.up("t2", "t3", admitted=False)
    script.wait(0.4)
    script.tell(loss)
    script.reach(3)
    script.wait(29.0)
    assert script.view.members == ("r0", "t1") and script.controller.limit == 3
    script.wait(2.0)
    assert script.view.members == ("r0", "t1", "t2") and script.controller.limit == 12
    assert [warned.reason for warned in script.events_of(Warned)] == [
        "plan: clock 3: join 2 transient: found 1 machines that wait to join after 30 s (machines.wait_s); "
        "the run goes on with those"
    ]


def test_a_planned_notice_for_more_machines_than_are_left_takes_those(scripts):
    script = scripts(make_job(clocks=12), [PlannedNotice(3, 2, 60.0)])
    script.up("r0", "t1", "t2")
    script.tell(NodeDown("t2", Loss.DISCONNECTED))
    script.reach(3)
    script.wait(0.4)
    assert script.view.members == ("r0",)
    assert [type(event) for event in script.events_of(PlanFired | PlanFinished)] == [PlanFired, PlanFinished]


def test_a_leaver_does_not_stay_for_a_clock_that_the_next_event_holds(scripts):
    script = scripts(make_job(clocks=12), [PlannedNotice(3, 1, 120.0), PlannedJoin(3, 1)], expected=3)
    script.up("r0", "t1")
    script.up("t2", admitted=False)
    script.reach(3, clock_s=1.0)  # a leaver ends its part of clocks that are so long
    script.wait(0.4)
    assert script.released == ["t1"]
    assert script.view.members == ("r0", "t2") and script.controller.limit == 12


def test_a_restarted_controller_does_not_fire_an_event_twice(scripts):
    script = scripts(make_job(clocks=12), [PlannedNotice(3, 1, 60.0), PlannedNotice(8, 1, 60.0)])
    script.up("r0", "t1", "t2")
    script.reach(3)
    script.wait(0.4)
    assert len(script.view.members) == 2
    script.restart()
    script.wait(2.0)
    assert len(script.view.members) == 2
    assert script.controller.limit == 8


def test_a_join_is_carried_out_though_the_controller_dies_before_its_machines_are_members(scripts):
    script = scripts(make_job(clocks=12), [PlannedJoin(3, 1)], expected=3)
    script.up("r0", "t1")
    script.up("t2", admitted=False)
    script.wait(0.4)
    script.machines["t2"].is_frozen = True  # the change waits for its promise
    script.reach(3)
    script.tell(Tick())
    assert script.events_of(PlanFired) and script.controller.is_changing
    assert script.view.members == ("r0", "t1")
    # The driver remembers who was admitted when it hears that they have joined.
    script.restart(waiting=["t2"])
    script.wake("t2")
    script.wait(2.0)
    assert script.view.members == ("r0", "t1", "t2")
    assert script.controller.limit == 12
