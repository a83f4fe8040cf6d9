"""The controller as short scripts: a stop whose deadline comes while a change is under way."""

from __future__ import annotations

import pytest

from agileml.core.protocol.inputs import NodeDown, NodeLost, NodeSeen, Received, Sealed, Stop, Tick
from agileml.core.protocol.messages import Fetch, Limit, Prepare, Save, Saved, SaveFailed
from agileml.core.protocol.plan import PlannedJoin, PlannedNotice
from agileml.core.protocol.view import CutId
from agileml.core.stage.placement import StageRule
from agileml.events.terms import Loss
from tests.agileml.core.exchange.test_pause import Replicas
from tests.agileml.core.fixtures import make_job
from tests.agileml.core.fixtures import scripts as scripts

ACTIVE = {"rule": StageRule(thresholds=(0.5, 15.0), active_fraction=1.0)}
STOP_S = 5.0


def make_standing(scripts, **settings):
    """A run whose change waits for t1, a member that is seen and does not answer."""
    script = scripts(**ACTIVE, **settings)
    script.up("r0", "t1", "t2", "t3")
    cut = script.commit_cut()
    script.reach(cut + 3)
    script.freeze("t1")
    script.tell(NodeDown("t2", Loss.DISCONNECTED))
    assert script.controller.is_changing
    script.tell(Stop(script.now_s + STOP_S))
    return script, cut


def wait(script, seconds, *seen):
    end_s = script.now_s + seconds
    while script.now_s < end_s:
        script.now_s += 0.2
        for name in seen:
            script.tell(NodeSeen(name))
        script.heartbeats()
        script.tell(Tick())


def test_a_change_that_waits_ends_with_the_committed_cut_at_the_deadline_of_a_stop(scripts):
    script, cut = make_standing(scripts)
    wait(script, STOP_S - 0.5, "t1")
    assert script.finished is None
    wait(script, 1.0, "t1")
    assert (script.finished.clock, script.finished.backup) == (cut, ("r0", "r0"))
    assert script.record.finished and script.record.committed.clock == cut
    assert set(script.machines["r0"].cuts) == {0, 1}
    before = script.record
    script.wake("t1")
    wait(script, 1.0)
    assert script.record == before, "nothing happens after the end"


def test_an_install_that_waits_ends_so_too(scripts):
    script, cut = make_standing(scripts)
    t1, asked = script.machines["t1"], script.told("t1", Prepare)[-1]
    script.tell(Received("t1", t1.promise(asked)))
    assert script.told("t1", Fetch)[-1].epoch == asked.epoch, "it is to fetch something"
    assert script.controller.is_changing
    wait(script, STOP_S + 1.0, "t1")
    assert script.finished.clock == cut


def test_an_end_waits_for_a_backup_that_is_silent(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    cut = script.commit_cut()
    script.reach(cut + 3)
    script.freeze("r0")
    script.tell(NodeLost("r0", Loss.DISCONNECTED))
    wait(script, 1.0)
    script.tell(Stop(script.now_s + STOP_S))
    wait(script, 60.0)
    assert script.finished is None and not script.halts, "nobody else has the cut"
    script.tell(NodeSeen("r0"))
    script.wake("r0")
    wait(script, 0.4)
    assert script.finished.clock == cut


def test_there_is_no_end_before_the_first_cut(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    script.freeze("t1")
    script.tell(NodeDown("t2", Loss.DISCONNECTED))
    script.tell(Stop(script.now_s + STOP_S))
    wait(script, 2 * STOP_S, "t1")
    assert script.finished is None and script.controller.is_changing


def test_the_cut_that_a_run_ends_with_is_saved_first(scripts):
    script, cut = make_standing(scripts, checkpoint_every_s=1000.0)
    wait(script, STOP_S + 2.0, "t1")
    assert script.finished is None
    name = script.record.committed
    asked = script.told("r0", Save)
    assert asked[-1].cut == name and len(asked) > 1, "it is asked again"
    for partition in (0, 1):
        script.tell(Received("r0", Saved(name, partition, 1, "0", ())))
    assert script.finished is None
    script.tell(Sealed(name))
    assert script.finished.clock == cut


@pytest.mark.parametrize("lacks", [False, True])
def test_a_new_controller_first_learns_what_the_backups_have(scripts, lacks):
    script, cut = make_standing(scripts, restart_wait_s=1.0)
    if lacks:
        del script.machines["r0"].cuts[1]
    script.restart()
    script.tell(NodeDown("t2", Loss.DISCONNECTED))
    script.tell(Stop(script.now_s - 1.0))
    assert script.finished is None
    wait(script, 3.0, "t1")
    assert script.controller.is_changing or script.record.finished
    assert script.record.finished is not lacks
    assert script.finished is None if lacks else script.finished.clock == cut


def test_an_end_in_order_is_as_before(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1")
    cut = script.commit_cut()
    script.tell(Stop(script.now_s + STOP_S))
    wait(script, STOP_S - 0.5)
    assert script.finished is None
    wait(script, 1.0)
    assert script.finished.clock == cut


def test_a_stop_ends_a_run_that_its_plan_holds_at_a_clock_for_machines_that_do_not_come(scripts):
    script = scripts(plan=[PlannedJoin(2, 1), PlannedNotice(4, 1, 60.0)])
    script.up("r0", "t1")
    script.reach(2)
    script.wait(3.0)
    assert script.controller.limit == 2
    script.tell(Stop())
    assert script.told("r0", Limit)[-1].limit == script.job.clocks, "the next cut is reached"
    cut = script.commit_cut()
    script.wait(0.4)
    assert script.finished is not None and script.finished.clock == cut
    assert set(script.view.members) == {"r0", "t1"}, "nothing else of the plan happens"


def test_a_run_does_not_end_with_a_cut_of_which_a_part_is_lost():
    """The only machine that has the part dies while the checkpoint is written, and replicas are at different clocks."""
    script = Replicas(make_job("allreduce"), expected=4, join_wait_s=0.0, checkpoint_every_s=1000.0)
    script.up("r0", "r1", "t0", "t1")
    epoch = script.view.epoch
    script.tell(Stop())
    cut = script.commit_cut()
    name = script.record.committed
    assert script.told("r0", Save)[-1].cut == name == CutId(cut, epoch)
    for machine in script.machines.values():
        machine.shards = {0: {epoch: cut + 2}, 1: {epoch: cut + 3}}
    script.tell(NodeDown("r0", Loss.DISCONNECTED))
    assert script.view.backup == ("r1", "r1") and set(script.machines["r1"].cuts) == {1}
    script.tell(Received("r1", SaveFailed(name, 0, "it has no part 0")))
    script.wait(1.0)
    assert script.finished is None and not script.record.finished
    script.commit_cut()
    for partition in (0, 1):
        script.tell(Received("r1", Saved(script.record.committed, partition, 1, "0", ())))
    script.tell(Sealed(script.record.committed))
    assert script.finished is not None and script.finished.clock > cut
