"""Changes under `exchange: allreduce`, and in a pipeline: which one waits for a clock's end, and what broken
groups lead to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agileml.core.protocol.commands import HaltKind
from agileml.core.protocol.inputs import NodeDown, NodeUp, Notice, Received
from agileml.core.protocol.messages import ClockReport, GroupFailed, Message, Pause, Status, Unreachable
from agileml.core.protocol.view import View
from agileml.core.stage.placement import StageRule
from agileml.events.terms import Loss, Tier
from tests.agileml.core.fixtures import Machine, Script, make_job


@dataclass
class Pausing(Machine):
    """Pauses when the test says so."""

    is_paused: bool = False

    def adopt(self, view: View) -> None:
        super().adopt(view)
        self.is_paused = False

    def status(self, progress: tuple[ClockReport, ...] = ()) -> Status:
        return replace(super().status(progress), is_paused=self.is_paused)


class Replica(Pausing):
    """Holds every partition."""

    def adopt(self, view: View) -> None:
        super().adopt(view)
        for partition in range(len(view.owner)) if self.name in view.group else ():
            self.shards.setdefault(partition, {}).setdefault(view.epoch, view.base)


class Replicas(Script):
    kind: type[Pausing] = Replica

    def up(self, *names: str, admitted: bool = True) -> None:
        for name in names:
            tier = Tier.RELIABLE if name[0] == "r" else Tier.TRANSIENT
            self.machines[name] = self.kind(name, tier)
            self.tell(NodeUp(name, tier, admitted))
        for name in names:
            self.tell(Received(name, self.machines[name].status()))

    def pause(self, *names: str) -> None:
        """These machines say that they have paused."""
        for name in names:
            machine = self.machines[name]
            assert isinstance(machine, Pausing)
            machine.is_paused = True
            self.tell(Received(name, machine.status()))

    def asked(self, kind: type[Message] = Pause) -> list[str]:
        return [name for name in self.machines if self.told(name, kind)]


def running(**settings: object) -> Replicas:
    script = Replicas(make_job("allreduce"), expected=3, join_wait_s=0.0, **settings)
    script.up("r0", "t0", "t1")
    assert [view.epoch for view in script.views] == [1]
    return script


def test_a_notice_waits_until_all_have_paused() -> None:
    script = running()
    script.tell(Notice("t1", script.now_s + 60.0))
    assert script.asked() == ["r0", "t0", "t1"]
    script.pause("r0", "t1")
    assert len(script.views) == 1
    script.pause("t0")
    assert script.workers == {"r0", "t0"}
    assert script.reason.startswith("notice for t1: ") and not script.views[-1].redone


def test_who_does_not_hear_is_asked_again() -> None:
    script = running()
    script.tell(Notice("t1", script.now_s + 60.0))
    script.pause("r0")
    before = {name: len(script.told(name, Pause)) for name in script.machines}
    script.wait(2.0)
    assert len(script.told("t0", Pause)) > before["t0"]
    assert len(script.told("r0", Pause)) == before["r0"]


def test_a_notice_without_time_does_not_wait_and_one_that_runs_short_stops_waiting() -> None:
    script = running()
    script.tell(Notice("t1", script.now_s + 0.1))
    assert script.workers == {"r0", "t0"}
    assert not script.asked()
    script = running()
    script.tell(Notice("t1", script.now_s + 5.0))
    script.wait(4.0)
    assert len(script.views) == 1
    script.wait(1.0)
    assert script.workers == {"r0", "t0"}


def test_a_death_does_not_wait() -> None:
    script = running()
    script.tell(Notice("t1", script.now_s + 60.0))
    script.tell(NodeDown("t0", Loss.PROCESS_DIED))
    assert script.workers == {"r0"}


def test_a_join_waits_but_not_where_nobody_may_go_on() -> None:
    script = running()
    script.up("t2")
    script.wait(0.4)
    assert script.asked() == ["r0", "t0", "t1"] and len(script.views) == 1
    for machine in script.machines.values():
        for copies in machine.shards.values():
            # The last clock is done: no sum will come.
            copies.update(dict.fromkeys(copies, script.job.clocks))
    script.heartbeats()
    assert script.workers == {"r0", "t0", "t1", "t2"}


def test_a_joiner_that_dies_while_they_pause_leads_to_a_change_all_the_same() -> None:
    script = running()
    script.up("t2")
    script.pause("r0", "t0")
    script.tell(NodeDown("t2", Loss.PROCESS_DIED))
    assert len(script.views) == 1
    script.pause("t1")
    assert len(script.views) == 2
    assert script.workers == {"r0", "t0", "t1"}


def test_a_broken_group_is_made_again_and_five_without_a_clock_end_the_run() -> None:
    script = running()
    for epoch in range(1, 5):
        assert script.view.epoch == epoch
        for name in ("t0", "t1"):  # the second one says nothing new
            script.tell(Received(name, GroupFailed(epoch, "RuntimeError: closed by peer")))
        script.wait(5.0)
    assert script.reason.startswith("the all-reduce failed at t0: ")
    assert not script.halts
    script.tell(Received("t0", GroupFailed(5, "RuntimeError: closed by peer")))
    (halt,) = script.halts
    assert halt.kind is HaltKind.BROKEN
    assert "could not add up by all-reduce 5 times in a row, last at t0: RuntimeError" in halt.reason


def test_groups_that_fail_at_once_do_not_end_the_run_before_an_unreached_machine_is_given_up() -> None:
    """Its firewall refuses connections: the group fails in no time, and transports say it after 5 s."""
    script = running()
    script.up("t2")
    script.pause("r0", "t0", "t1")
    since_s = script.now_s
    while "t2" in script.workers:
        script.wait(0.2)
        if script.now_s - since_s > 5.0:
            for name in ("r0", "t0", "t1"):
                script.tell(Received(name, Unreachable(("t2",))))
        if "t2" in script.workers:
            script.tell(Received("t0", GroupFailed(script.view.epoch, "connect: No route to host")))
        assert not script.halts
    assert script.workers == {"r0", "t0", "t1"}
    script.reach(script.view.base + 1)
    script.wait(30.0)
    assert not script.halts


class StagesOfTwo(Replicas):
    kind = Pausing

    def at_version(self, name: str, version: int) -> None:
        """A stage has applied all clocks before this one."""
        for copies in self.machines[name].shards.values():
            copies.update(dict.fromkeys(copies, version))
        self.tell(Received(name, self.machines[name].status()))


def pipeline() -> StagesOfTwo:
    script = StagesOfTwo(make_job("flush"), expected=3, join_wait_s=0.0, rule=StageRule((1.0, 15.0), 3, 1.0))
    script.up("r0", "t0", "t1")
    assert script.view.owner == ("t0", "t1")
    return script


def test_a_notice_waits_until_every_stage_is_after_the_clock_of_the_first() -> None:
    script = pipeline()
    script.tell(Notice("t1", script.now_s + 60.0))
    assert script.asked() == ["t0", "t1"]
    script.pause("t1")
    script.at_version("t1", 3)
    script.at_version("t0", 4)
    script.pause("t0")
    assert len(script.views) == 1  # t1 is still at clock 3
    script.at_version("t1", 4)
    assert script.view.owner == ("t0", "t0")
    assert script.view.base == 4


def test_a_stage_whose_notice_is_too_short_or_that_dies_is_not_waited_for() -> None:
    script = pipeline()
    script.tell(Notice("t1", script.now_s + 0.1))
    assert script.view.owner == ("t0", "t0") and not script.asked()
    script = pipeline()
    script.tell(Notice("t1", script.now_s + 60.0))
    script.tell(NodeDown("t0", Loss.PROCESS_DIED))
    assert len(script.views) == 2
