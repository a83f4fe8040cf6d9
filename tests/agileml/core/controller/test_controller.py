"""The controller as short scripts: what happens, and what is done about it, with the reason."""

from __future__ import annotations

import pytest

from agileml.core.cuts.rule import CutRule
from agileml.core.protocol.commands import HaltKind, Persist
from agileml.core.protocol.inputs import (
    NodeDown,
    NodeSeen,
    NodeUp,
    Notice,
    NoticeCancelled,
    Received,
    Superseded,
    Tick,
)
from agileml.core.protocol.messages import (
    Announce,
    ClockReport,
    Failure,
    Limit,
    Missed,
    NameCut,
    Prepare,
    Promise,
    Release,
    Status,
    Stored,
)
from agileml.core.protocol.plan import PlannedJoin, PlannedNotice
from agileml.core.stage.placement import StageRule
from agileml.events.run import (
    ClockDone,
    MachineLost,
    MachineNoticed,
    MachinesJoined,
    PlanFinished,
    PlanFired,
    WaitingForSilent,
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
        script.tell(NodeUp(name, Tier.TRANSIENT, "a", admitted=True))
    before = script.view.epoch
    for name in ("t1", "t2", "t3"):
        script.up(name)
    assert script.view.epoch == before + 1
    assert "join of t1, t2, t3" in script.reason


def test_a_late_machine_holds_up_the_others_no_longer_than_the_wait(scripts):
    script = scripts(join_wait_s=1.0)
    script.up("r0")
    script.up("t9")
    script.tell(NodeUp("t2", Tier.TRANSIENT, "a", admitted=True))  # never ready
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


# -- notices ------------------------------------------------------------------------------------------------


def test_a_notice_for_some_moves_what_they_hold_and_lets_them_go(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    assert set(script.view.owner) == {"t1", "t2"}
    script.tell(Notice("t1", script.now_s + 60.0))
    assert set(script.view.owner) == {"t2"}
    assert "t1" not in script.view.members
    assert "notice for t1" in script.reason and "nothing lost" in script.reason
    assert script.released == ["t1"]
    assert script.told("t1", Release)


def test_a_notice_for_all_goes_back_to_stage_1_with_nothing_redone(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    script.reach(3)
    for name in ("t1", "t2"):
        script.tell(Notice(name, script.now_s + 60.0))
    assert script.view.stage == 1
    assert set(script.view.owner) == {"r0"}
    assert script.view.base == 3
    assert all(view.redone == 0 for view in script.views)
    assert sorted(script.released) == ["t1", "t2"]


def test_a_leaver_ends_its_part_of_a_long_clock_and_goes(scripts):
    script = scripts()
    script.up("r0", "t1")
    script.reach(3, clock_s=5.0)
    script.tell(Notice("t1", script.now_s + 60.0))
    assert "t1" not in script.workers and "t1" in script.view.members
    assert [clock for clock, dealt in script.view.open if "t1" in dict(dealt)] == [3]
    assert script.released == []
    script.reach(4, clock_s=5.0)
    script.wait(0.4)
    assert script.released == ["t1"]
    assert script.view.members == ("r0",)


def test_a_leaver_without_the_time_for_its_clock_goes_at_once(scripts):
    script = scripts()
    script.up("r0", "t1")
    script.reach(3, clock_s=5.0)
    script.tell(Notice("t1", script.now_s + 6.0))
    assert script.view.members == ("r0",)
    assert script.released == ["t1"]


def test_a_hundred_notices_in_any_order_and_doubled_are_handled_once_each(scripts):
    script = scripts(make_job(slices=128, partitions=4), join_wait_s=0.0, **ACTIVE)
    names = [f"t{i}" for i in range(100)]
    script.up("r0", *names)
    for name in [*reversed(names), *names]:
        script.tell(Notice(name, script.now_s + 60.0))
    script.wait(1.0)
    assert sorted(script.released) == sorted(names)
    assert len(script.events_of(MachineNoticed)) == 100
    assert script.view.members == ("r0",)
    assert not any(view.rolled_back for view in script.views)


def test_a_cancelled_notice_brings_the_work_back(scripts):
    script = scripts()
    script.up("r0", "t1")
    script.is_store_open = False
    script.tell(Notice("t1", script.now_s + 60.0))
    script.tell(NoticeCancelled("t1"))
    script.is_store_open = True
    script.write()
    script.wait(1.0)
    assert "t1" in script.workers
    assert script.released == []


def test_a_notice_in_the_middle_of_a_change_starts_it_over(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    script.freeze("t2")
    epoch = script.view.epoch
    script.tell(Notice("t1", script.now_s + 60.0))  # PREPARE: t2 does not answer yet
    script.tell(Notice("t2", script.now_s + 60.0))
    script.wake("t2")
    script.wait(1.0)
    assert script.view.members == ("r0",)
    assert script.view.epoch > epoch
    assert not any(view.rolled_back for view in script.views)


def test_a_notice_counts_even_while_the_machine_is_silent(scripts):
    script = scripts()
    script.up("r0", "t1")
    script.freeze("t1")
    script.wait(2.0)
    assert script.workers == {"r0"}
    script.tell(Notice("t1", script.now_s + 60.0))
    script.wake("t1")
    script.wait(3.0)
    assert script.workers == {"r0"}, "a machine that is about to go got work"


def test_the_last_reliable_machine_stays_until_there_is_another(scripts):
    script = scripts()
    script.up("r0", "t1")
    script.tell(Notice("r0", script.now_s + 600.0))
    script.wait(1.0)
    assert "r0" in script.view.members and script.released == []
    script.up("r1")
    script.wait(2.0)
    assert set(script.view.backup) == {"r1"}
    assert script.released == ["r0"]


# -- failures -----------------------------------------------------------------------------------------------


def test_the_death_of_a_worker_is_no_rollback(scripts):
    script = scripts()
    script.up("r0", "t1")
    script.reach(4)
    script.tell(NodeDown("t1", Loss.DISCONNECTED))
    assert script.workers == {"r0"}
    assert "failure of t1" in script.reason and "nothing lost" in script.reason
    assert script.view.base == 4
    assert script.events_of(MachineLost)[-1].machine == "t1"
    assert script.events_of(MachineLost)[-1].loss is Loss.DISCONNECTED


def test_the_death_of_an_owner_takes_everybody_to_the_committed_cut(scripts):
    script = scripts(cuts=CutRule(max_clocks=2), **ACTIVE)
    script.up("r0", "t1", "t2")
    cut = script.commit_cut()
    script.reach(cut + 3)
    timeline = script.view.timeline
    script.tell(NodeDown("t1", Loss.DISCONNECTED))
    assert script.view.base == cut
    assert script.view.open == ()
    assert script.view.timeline == script.view.epoch > timeline
    assert script.views[-1].redone == 3
    assert f"back to clock {cut}" in script.reason


def test_a_failure_before_the_first_cut_starts_from_the_initial_values(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1")
    script.reach(1)
    script.tell(NodeDown("t1", Loss.DISCONNECTED))
    assert (script.view.stage, script.view.base) == (1, 0)
    assert script.views[-1].rolled_back


def test_most_or_all_transient_machines_at_once(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2", "t3")
    cut = script.commit_cut()
    script.is_store_open = False
    for name in ("t1", "t2", "t3"):
        script.tell(NodeDown(name, Loss.DISCONNECTED))
    script.is_store_open = True
    script.write()
    script.wait(0.4)
    assert script.view.members == ("r0",)
    assert script.view.base == cut


def test_a_silent_machine_is_declared_lost_after_the_timeout_and_may_come_back(scripts):
    script = scripts()
    script.up("r0", "t1")
    script.freeze("t1")
    script.wait(0.8)
    assert "t1" in script.workers
    script.wait(0.6)
    assert script.workers == {"r0"}
    script.wake("t1")
    script.wait(2.0)
    assert script.workers == {"r0", "t1"}
    assert "join of t1" in script.reason


def test_a_machine_that_is_only_busy_is_not_declared_lost(scripts):
    script = scripts()
    script.up("r0", "t1")
    script.freeze("t1")
    for _ in range(20):
        script.tell(NodeSeen("t1"))
        script.wait(0.2)
    assert "t1" in script.workers


def test_a_frozen_owner_that_answers_in_time_keeps_its_copy(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    script.reach(5)
    script.freeze("t1")
    script.up("t3")
    assert script.controller.is_changing
    script.wake("t1")
    script.wait(1.0)
    assert script.view.base == 5
    assert not any(view.rolled_back for view in script.views)


def test_a_released_machine_that_still_speaks_is_sent_away_again(scripts):
    script = scripts()
    script.up("r0", "t1", "t2")
    script.tell(Notice("t1", script.now_s + 60.0))
    script.wait(1.0)
    assert script.released == ["t1"]
    before = len(script.told("t1", Release))
    script.heartbeats()
    assert len(script.told("t1", Release)) == before + 1
    script.tell(NodeDown("t1", Loss.PROCESS_ENDED))
    script.heartbeats()
    assert len(script.told("t1", Release)) == before + 1
    assert not script.events_of(MachineLost)


def test_a_new_controller_does_not_listen_for_members_that_are_known_to_be_gone(scripts):
    script = scripts(restart_wait_s=10.0)
    script.up("r0", "t1", "t2")
    script.freeze("t1")
    script.restart()
    script.tell(NodeDown("t1", Loss.GONE_BEFORE))
    script.wait(0.6)
    assert script.view.members == ("r0", "t2")


def test_a_silent_reliable_machine_is_waited_for(scripts):
    script = scripts()
    script.up("r0", "t1")
    script.commit_cut()
    script.freeze("r0")
    script.wait(3.0)
    assert not script.halts
    assert script.events_of(WaitingForSilent)
    script.wake("r0")
    script.wait(2.0)
    assert script.workers == {"r0", "t1"}
    assert not script.halts


def test_a_silent_reliable_machine_is_waited_for_before_anything_is_given_up(scripts):
    """It froze for a moment: no reason to throw away all that was done since the last checkpoint."""
    script = scripts(rule=StageRule(forced=1))
    script.up("r0", "r1", "t1")
    assert set(script.view.owner) == {"r0", "r1"}
    cut = script.commit_cut()
    script.freeze("r1")
    script.wait(1.6)
    script.wake("r1")
    script.wait(2.0)
    assert script.view.base >= cut, script.reason


def test_a_reliable_machine_that_is_not_ready_yet_takes_over_from_the_last_one(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1")
    script.commit_cut()
    script.machines["r1"] = Machine("r1", Tier.RELIABLE)
    script.tell(NodeUp("r1", Tier.RELIABLE, "", admitted=True))  # it has loaded nothing
    script.tell(NodeDown("r0", Loss.DISCONNECTED))
    script.wait(2.0)
    assert not script.halts
    assert set(script.view.backup) == {"r1"}
    assert not any(view.rolled_back for view in script.views)


def test_the_run_ends_when_the_last_reliable_machine_is_dead(scripts):
    script = scripts()
    script.up("r0", "t1")
    script.commit_cut()
    script.tell(NodeDown("r0", Loss.DISCONNECTED))
    assert [halt.kind for halt in script.halts] == [HaltKind.LOST]
    assert "reliable" in script.halts[0].reason


def test_a_dead_machine_never_comes_back_under_its_name(scripts):
    script = scripts()
    script.up("r0", "t1")
    script.tell(NodeDown("t1", Loss.DISCONNECTED))
    script.wait(2.0)  # its status still arrives
    assert script.workers == {"r0"}
    assert len(script.events_of(MachineLost)) == 1


def test_user_code_that_fails_ends_the_run_with_its_trace(scripts):
    script = scripts()
    script.up("r0", "t1")
    script.tell(Received("t1", Failure("clock 3, slice 2: ZeroDivisionError", "Traceback ...")))
    assert script.halts[0].kind is HaltKind.USER_CODE
    assert script.halts[0].reason == "machine t1: clock 3, slice 2: ZeroDivisionError"
    assert script.halts[0].trace == "Traceback ..."
    assert script.tell(Tick()) == []


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


def test_clocks_are_noted_once_and_in_order(scripts):
    script = scripts()
    script.up("r0")
    script.reach(3)
    epoch = script.view.epoch
    again = tuple(ClockReport(c, 1.0, 1, 5.0) for c in range(5))
    script.tell(Received("r0", Status(epoch, ((0, 5), (1, 5)), script.machines["r0"].loaded, again)))
    assert [note.clock for note in script.events_of(ClockDone)] == [1, 2, 3, 4, 5]


# -- plans --------------------------------------------------------------------------------------------------


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


def test_a_planned_notice_for_more_machines_than_are_left_takes_those(scripts):
    script = scripts(make_job(clocks=12), [PlannedNotice(3, 2, 60.0)])
    script.up("r0", "t1", "t2")
    script.tell(NodeDown("t2", Loss.DISCONNECTED))
    script.reach(3)
    script.wait(0.4)
    assert script.view.members == ("r0",)
    assert [type(event) for event in script.events_of(PlanFired | PlanFinished)] == [PlanFired, PlanFinished]


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
