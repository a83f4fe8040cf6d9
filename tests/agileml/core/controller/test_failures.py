"""The controller as short scripts: machines that die, fall silent or fail in user code."""

from __future__ import annotations

from agileml.core.cuts.rule import CutRule
from agileml.core.protocol.commands import HaltKind
from agileml.core.protocol.inputs import (
    NodeDown,
    NodeLost,
    NodeSeen,
    NodeUp,
    Notice,
    Received,
    Tick,
)
from agileml.core.protocol.messages import (
    Failure,
    Release,
)
from agileml.core.stage.placement import StageRule
from agileml.events.run import (
    MachineLost,
    WaitingForSilent,
)
from agileml.events.terms import Loss, Tier
from tests.agileml.core.fixtures import Machine
from tests.agileml.core.fixtures import scripts as scripts

ACTIVE = {"rule": StageRule(thresholds=(0.5, 15.0), active_fraction=1.0)}  # stage 2 as soon as there is one


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
    script.tell(NodeUp("r1", Tier.RELIABLE, admitted=True))  # it has loaded nothing
    script.tell(NodeDown("r0", Loss.DISCONNECTED))
    script.wait(2.0)
    assert not script.halts
    assert set(script.view.backup) == {"r1"}
    assert not any(view.rolled_back for view in script.views)


def test_the_process_of_the_only_reliable_machine_may_die_while_the_first_view_is_made(scripts):
    """Another one is up in its place, and has not loaded its items yet."""
    script = scripts()
    script.is_store_open = False
    script.up("r0", "t1")
    script.freeze("r0")
    script.is_store_open = True
    script.write()
    script.tell(NodeLost("r0", Loss.DISCONNECTED))
    script.wait(1.0)
    script.machines["r1"] = Machine("r1", Tier.RELIABLE, is_frozen=True)
    script.tell(NodeUp("r1", Tier.RELIABLE, admitted=True))
    script.tell(NodeDown("r0", Loss.PROCESS_DIED))
    assert script.controller.is_changing and not script.halts
    script.wake("r1")
    script.wait(2.0)
    assert not script.halts
    assert script.view.members == ("r1", "t1")


def test_the_first_view_is_not_waited_for_if_no_reliable_machine_may_come(scripts):
    script = scripts()
    script.is_store_open = False
    script.up("r0", "t1")
    script.up("r1", admitted=False)
    script.is_store_open = True
    script.freeze("r0")
    script.write()
    script.tell(NodeDown("r0", Loss.PROCESS_DIED))
    assert [halt.kind for halt in script.halts] == [HaltKind.LOST]


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
