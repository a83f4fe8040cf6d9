"""The controller as short scripts: joins, its own restarts, cuts, plans and stages, each with the reason."""

from __future__ import annotations

import pytest

from agileml.core.cuts.checkpoint import Checkpoint
from agileml.core.cuts.rule import CutRule
from agileml.core.protocol.commands import Persist
from agileml.core.protocol.inputs import (
    NodeDown,
    NodeSeen,
    NodeUp,
    Notice,
    Received,
    Superseded,
    Tick,
)
from agileml.core.protocol.messages import (
    Announce,
    ClockReport,
    Missed,
    NameCut,
    Prepare,
    Promise,
    Status,
    Stored,
)
from agileml.core.protocol.plan import PlannedJoin, PlannedNotice
from agileml.core.protocol.view import CutId
from agileml.core.stage.placement import StageRule
from agileml.events.run import (
    ClockDone,
    MachineLost,
    MachinesJoined,
    PlanFinished,
    PlanFired,
)
from agileml.events.terms import Loss, Tier
from tests.agileml.core.fixtures import Machine, make_job
from tests.agileml.core.fixtures import scripts as scripts

ACTIVE = {"rule": StageRule(thresholds=(0.5, 15.0), active_fraction=1.0)}  # stage 2 as soon as there is one


# -- start and join -----------------------------------------------------------------------------------------


def test_the_first_view_waits_for_everybody_who_is_expected(scripts):
    script = scripts(expected=3)
    script.up("r0", "t1")
    script.wait(1.0)
    assert script.controller.view is None
    script.up("t2")
    assert script.view.members == ("r0", "t1", "t2")
    assert script.reason.startswith("start: 2 transient to 1 reliable is over 1:1")
    assert script.views[-1].rolled_back is False


def test_a_machine_that_joins_gets_work_from_the_next_view_on(scripts):
    script = scripts()
    script.up("r0")
    assert script.workers == {"r0"}
    script.up("t1")
    assert script.workers == {"r0", "t1"}
    assert "join of t1" in script.reason
    assert list(script.events_of(MachinesJoined)[-1].machines) == ["t1"]
    share = script.view.share_of
    assert share["r0"].bit_count() == share["t1"].bit_count() == 4


def test_a_machine_that_is_not_admitted_loads_its_slices_and_waits(scripts):
    script = scripts()
    script.up("r0")
    script.up("t1", admitted=False)
    script.wait(3.0)
    assert script.workers == {"r0"}
    assert script.machines["t1"].loaded.bit_count() == 4
    script.admit("t1")
    assert script.workers == {"r0", "t1"}


def test_machines_that_come_together_join_in_one_change(scripts):
    script = scripts()
    script.up("r0")
    for name in ("t1", "t2", "t3"):
        script.tell(NodeUp(name, Tier.TRANSIENT, admitted=True))
    before = script.view.epoch
    for name in ("t1", "t2", "t3"):
        script.up(name)
    assert script.view.epoch == before + 1
    assert "join of t1, t2, t3" in script.reason


def test_machines_that_came_and_went_by_the_hundreds_are_forgotten(scripts):
    script = scripts()
    script.up("r0", "t0")
    known = []
    for number in range(1, 100):
        script.up(f"t{number}")
        old = f"t{number - 1}"
        script.tell(Notice(old, script.now_s + 60.0) if number % 2 else NodeDown(old, Loss.DISCONNECTED))
        script.wait(0.4)
        script.tell(NodeDown(old, Loss.PROCESS_ENDED))
        del script.machines[old]
        known.append(len(script.controller._control.members.nodes))
    assert script.view.members == ("r0", "t99")
    assert max(known) <= 4, known


def test_a_joiner_that_died_before_it_was_a_member_ends_the_planned_join_all_the_same(scripts):
    script = scripts(make_job(clocks=12), [PlannedJoin(3, 2), PlannedNotice(6, 1, 60.0)], expected=3)
    script.up("r0")
    script.up("t1", "t2", admitted=False)
    script.freeze("t2")
    script.reach(3)
    script.tell(Tick())  # both are admitted, and t2 does not promise
    script.tell(NodeDown("t2", Loss.PROCESS_DIED))
    script.wait(0.4)
    assert script.view.members == ("r0", "t1")
    assert script.controller.limit == 6
    assert [type(event) for event in script.events_of(PlanFired | PlanFinished)] == [PlanFired, PlanFinished]


def test_a_late_machine_holds_up_the_others_no_longer_than_the_wait(scripts):
    script = scripts(join_wait_s=1.0)
    script.up("r0")
    script.up("t9")
    script.tell(NodeUp("t2", Tier.TRANSIENT, admitted=True))  # never ready
    script.machines["t2"] = Machine("t2", Tier.TRANSIENT, is_frozen=True)
    script.up("t1")
    assert script.workers == {"r0", "t9"}
    for _ in range(6):  # it is there, only not ready
        script.tell(NodeSeen("t2"))
        script.wait(0.2)
    # PREPARE goes to everyone who lives, so the change ends only once t2 answers.
    script.wake("t2")
    script.wait(1.0)
    assert "t1" in script.workers


# -- the controller itself ----------------------------------------------------------------------------------


def test_a_controller_that_slept_does_not_accuse_everybody(scripts):
    script = scripts()
    script.up("r0", "t1")
    script.now_s += 30.0
    script.tell(Tick())
    assert script.events_of(MachineLost) == []
    script.wait(2.0)
    assert script.workers == {"r0", "t1"}


def test_a_restarted_controller_listens_first_and_loses_nothing(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    cut = script.commit_cut()
    script.reach(cut + 2)
    epoch = script.view.epoch
    script.restart()
    assert script.view.epoch == epoch
    script.wait(2.0)
    assert script.view.epoch == epoch + 1
    assert "restart of the controller" in script.reason
    assert script.view.base == cut + 2
    assert script.record.committed.clock == cut


def test_a_restarted_controller_has_no_member_load_what_it_does_not_compute(scripts):
    script = scripts(expected=2)
    script.up("r0", "t1")
    for name in ("t2", "t3"):  # each gets what is nearest, so their shares are not those of a start with all
        script.up(name)
        script.wait(1.0)
    loaded = {name: machine.loaded for name, machine in script.machines.items()}
    script.restart()
    script.wait(2.0)
    assert "restart of the controller" in script.reason
    assert {name: machine.loaded for name, machine in script.machines.items()} == loaded


def test_a_restarted_controller_counts_machines_as_it_hears_of_them_and_clocks_from_its_record(scripts):
    """Its record has no tiers: none is taken for a reliable one meanwhile. It has the cut."""
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    assert script.controller.count_members() == (1, 2)
    cut = script.commit_cut()
    assert cut > script.view.base
    counted, clocks, tell = [], [], script.tell

    def told(event):
        counted.append(script.controller.count_members())
        clocks.append(script.controller.completed)
        return tell(event)

    script.tell = told
    script.restart()
    assert counted[0] == (0, 0)
    assert all(reliable <= 1 and transient <= 2 for reliable, transient in counted)
    assert script.controller.count_members() == (1, 2)
    assert clocks[0] == cut


def test_a_run_that_resumes_is_at_the_clock_of_its_checkpoint_while_it_waits_for_machines(scripts):
    """At clock 0 it would look as if all its work were lost, for as long as they do not come."""
    script = scripts(**ACTIVE)
    script.saved = Checkpoint(CutId(10, 3), ((),) * script.job.layout.partitions)
    script.restart()
    assert script.controller.view is None and script.controller.completed == 10
    script.up("r0", "t1", "t2")
    assert script.view.base == script.controller.completed == 10


def test_a_restart_in_the_middle_of_a_change_needs_nothing_special(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    script.reach(4)
    script.freeze("t2")
    script.up("t3")  # claimed and prepared; t2 has not promised
    claimed = script.record.claimed
    script.restart()
    script.wake("t2")
    script.wait(3.0)
    assert script.view.epoch > claimed
    assert script.view.base == 4
    assert {"t1", "t2", "t3"} <= set(script.view.members)
    assert not any(view.rolled_back for view in script.views)


def test_of_two_controllers_the_older_stops_at_its_next_write(scripts):
    script = scripts()
    script.up("r0", "t1")
    older = script.controller
    script.restart()
    commands = older.handle(Notice("t1", script.now_s + 60.0), script.now_s)
    (write,) = [c for c in commands if isinstance(c, Persist)]
    assert write.number in script.store
    older.handle(Superseded(write.number), script.now_s)
    assert older.handle(Tick(), script.now_s) == []


def test_nothing_is_announced_before_it_is_durable(scripts):
    script = scripts()
    script.up("r0")
    script.is_store_open = False
    script.up("t1")
    assert script.told("t1", Prepare) == []
    script.write()  # the claim
    assert script.told("t1", Prepare) != []
    epoch = script.view.epoch
    assert {m.view.epoch for m in script.told("t1", Announce)} == {epoch}
    script.write()  # the view
    assert script.told("t1", Announce)[-1].view.epoch == script.view.epoch > epoch


def test_messages_of_an_older_epoch_change_nothing(scripts):
    script = scripts(cuts=CutRule(max_clocks=2))
    script.up("r0")
    old = script.view.epoch
    script.up("t1")
    committed = script.record.committed
    named = script.told("r0", NameCut)[-1].next
    for message in (
        Promise(old, (), (), ()),
        *(Stored(old, p, named) for p in range(2)),
        Missed(old, 0, named, 9),
    ):
        script.tell(Received("r0", message))
    assert script.record.committed == committed
    assert script.told("r0", NameCut)[-1].next == named


# -- cuts and the end ---------------------------------------------------------------------------------------


def test_a_cut_is_committed_when_every_part_is_stored(scripts):
    script = scripts(cuts=CutRule(max_clocks=2))
    script.up("r0")
    named = script.told("r0", NameCut)[-1].next
    script.tell(Received("r0", Stored(script.view.epoch, 0, named)))
    assert script.record.committed.clock == 0
    script.tell(Received("r0", Stored(script.view.epoch, 0, named)))  # again
    assert script.record.committed.clock == 0
    script.tell(Received("r0", Stored(script.view.epoch, 1, named)))
    assert script.record.committed == type(script.record.committed)(named, script.view.epoch)
    assert script.told("r0", NameCut)[-1].next > named


def test_a_cut_that_was_passed_is_named_anew(scripts):
    script = scripts()
    script.up("r0")
    named = script.told("r0", NameCut)[-1].next
    script.tell(Received("r0", Missed(script.view.epoch, 0, named, named + 5)))
    assert script.told("r0", NameCut)[-1].next > named + 5


def test_a_whole_cut_is_not_named_anew_while_it_is_written(scripts):
    script = scripts()
    script.up("r0")
    named = script.told("r0", NameCut)[-1].next
    script.is_store_open = False
    for p in range(2):
        script.tell(Received("r0", Stored(script.view.epoch, p, named)))
    script.tell(Received("r0", Missed(script.view.epoch, 0, named, named + 1)))
    assert script.told("r0", NameCut)[-1].next == named
    script.write()
    assert script.record.committed.clock == named


def test_the_run_is_finished_when_the_last_cut_is_durable(scripts):
    script = scripts(make_job(clocks=3))
    script.up("r0", "t1")
    while script.finished is None:
        script.commit_cut()
        script.heartbeats()
    assert script.finished.clock == 3
    assert set(script.finished.backup) == {"r0"}
    assert script.record.finished


def test_a_controller_that_restarts_after_the_end_says_it_again(scripts):
    """The earlier one may have died with the end on record, but before anybody asked it."""
    script = scripts(make_job(clocks=3))
    script.up("r0", "t1")
    while script.finished is None:
        script.commit_cut()
        script.heartbeats()
    said, script.finished = script.finished, None
    script.restart()
    script.up("r0", "t1")
    assert script.finished == said


def test_clocks_are_noted_once_and_in_order(scripts):
    script = scripts()
    script.up("r0")
    script.reach(3)
    epoch = script.view.epoch
    again = tuple(ClockReport(c, 1.0, 1, 5.0) for c in range(5))
    script.tell(Received("r0", Status(epoch, ((0, 5), (1, 5)), script.machines["r0"].loaded, again)))
    assert [note.clock for note in script.events_of(ClockDone)] == [1, 2, 3, 4, 5]


# -- stages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forced", [1, 2, 3])
def test_a_stage_can_be_set(scripts, forced):
    script = scripts(rule=StageRule(forced=forced))
    script.up("r0", "t1", "t2")
    assert script.view.stage == forced
    assert f"stage {forced} is set" in script.reason
    assert ("r0" in script.workers) == (forced < 3)


def test_stages_follow_the_ratio_up_and_down(scripts):
    script = scripts(make_job(slices=16), rule=StageRule(thresholds=(1.0, 3.0)))
    script.up("r0", "t1")
    assert script.view.stage == 1
    script.up("t2")
    assert script.view.stage == 2
    assert "2 transient to 1 reliable is over 1:1 and at most 3:1" in script.reason
    script.up("t3", "t4")
    assert script.view.stage == 3
    assert "r0" not in script.workers
    for name in ("t1", "t2", "t3", "t4"):
        script.tell(NodeDown(name, Loss.DISCONNECTED))
    assert script.view.stage == 1
    assert "no transient machine" in script.reason


def test_a_heartbeat_with_others_behind_it_is_taken_and_the_next_event_acts_on_it(scripts):
    looked = []

    class Counted(StageRule):
        def stage(self, reliable, transient):
            looked.append(transient)
            return super().stage(reliable, transient)

    script = scripts(rule=Counted())
    script.up("r0", "t1")
    controller, late = script.controller, script.now_s + 1.0
    looked.clear()
    for _ in range(20):
        for name in ("r0", "t1"):
            controller.handle(Received(name, script.machines[name].status()), late, acts=False)
    assert looked == []
    controller.handle(Tick(), late)
    assert looked == [1]
