"""The controller as short scripts: preemption notices, for some machines or for all."""

from __future__ import annotations

from agileml.core.protocol.inputs import (
    NodeUp,
    Notice,
)
from agileml.core.protocol.messages import (
    Release,
)
from agileml.core.stage.placement import StageRule
from agileml.events.run import (
    MachineNoticed,
)
from agileml.events.terms import Tier
from tests.agileml.core.fixtures import Machine, make_job
from tests.agileml.core.fixtures import scripts as scripts

ACTIVE = {"rule": StageRule(thresholds=(0.5, 15.0), active_fraction=1.0)}  # stage 2 as soon as there is one


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


def test_a_machine_that_comes_with_a_notice_gets_no_work_and_goes(scripts):
    """The notice came while its process started."""
    script = scripts()
    script.up("r0")
    script.machines["t1"] = Machine("t1", Tier.TRANSIENT)
    for _ in range(2):
        script.tell(NodeUp("t1", Tier.TRANSIENT, True, deadline_s=script.now_s + 60.0))
    script.wait(3.0)
    assert script.workers == {"r0"} and len(script.views) == 1
    assert script.released == ["t1"]
    assert len(script.events_of(MachineNoticed)) == 1


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


def test_a_transient_machine_goes_with_nothing_lost_while_the_only_reliable_one_is_to_go_too(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    script.reach(3)
    script.tell(Notice("r0", script.now_s + 3600.0))
    script.tell(Notice("t1", script.now_s + 60.0))
    assert script.released == ["t1"]
    assert script.view.members == ("r0", "t2") and set(script.view.owner) == {"t2"}
    assert not script.views[-1].rolled_back
    script.wait(3.0)
    assert len(script.views) == 2  # the machine that has to stay is no reason for another one


def test_reliable_machines_that_all_have_to_stay_are_members_once_though_one_holds_nothing(scripts):
    """In stage 3 they compute nothing, and of one partition only one of them is the backup."""
    script = scripts(make_job(partitions=1), rule=StageRule(forced=3), expected=3)
    script.up("r0", "r1", "t1")
    script.commit_cut()
    script.is_store_open = False
    for name in ("r0", "r1"):  # both before the change for the first one is claimed
        script.tell(Notice(name, script.now_s + 3600.0))
    for _ in range(10):
        script.write()
    assert not script.controller.is_changing, "the change begins anew again and again"
    assert script.view.members == ("r0", "r1", "t1") and script.released == []
    assert len(script.views) == 2


def test_the_only_reliable_machine_may_get_a_notice_while_the_first_view_is_made(scripts):
    script = scripts(expected=2)
    script.is_store_open = False
    script.up("r0", "t1")
    assert script.unanswered  # the claim
    script.tell(Notice("r0", script.now_s + 3600.0))
    script.is_store_open = True
    script.write()
    assert not script.halts
    assert script.view.members == ("r0", "t1")


def test_the_only_reliable_machine_is_one_member_though_it_has_the_time_to_end_its_clock(scripts):
    script = scripts(**ACTIVE)
    script.up("r0", "t1", "t2")
    script.reach(3, clock_s=5.0)
    for name in ("r0", "t1"):
        script.tell(Notice(name, script.now_s + 3600.0))
    assert script.view.members == ("r0", "t2", "t1"), "t1 ends its part of the open clock"
    assert script.controller.count_members() == (1, 2)
