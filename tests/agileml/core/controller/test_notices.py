"""The controller and notices that may be too short: what it decides, says and does."""

from __future__ import annotations

from typing import Any

import pytest

from agileml.core.change.transfers import shard_size
from agileml.core.cuts.rule import CutRule
from agileml.core.protocol.commands import Send
from agileml.core.protocol.inputs import Measured, NodeDown, Notice, Received, Tick
from agileml.core.protocol.messages import Fetch, Installed, NameCut, Role, Stored
from agileml.core.protocol.view import CutId
from agileml.core.stage.link_rate import LinkRule
from agileml.events.run import ShortNoticeJudged
from agileml.events.terms import Loss, Way
from tests.agileml.core.fixtures import Script, make_job
from tests.agileml.core.fixtures import scripts as scripts

CLOCK_S = 0.5


def trained(make: Any, *, travel_s: float = 4.0, mode: str = "bsp", transient: int = 3) -> Script:
    """A run in stage 2 whose cuts took `travel_s` to their backup: what links carry is known by it."""
    script: Script = make(
        make_job(mode, clocks=1000, partitions=4),
        cuts=CutRule(every_s=4.0),
        links=LinkRule(least_bytes=1, settle_s=0.0),
        worth_finishing_s=10.0,  # leavers end nothing here
    )
    script.up("r0", *(f"t{index}" for index in range(transient)))
    script.wait(1.5)
    assert script.view.stage == 2
    for _ in range(3):  # the first two before it is known what a clock takes
        named = send_cut(script)
        script.wait(travel_s)
        store_cut(script, named)
    return script


def send_cut(script: Script) -> int:
    """All owners reach the cut that is named; its parts leave."""
    view = script.view
    named = [m for m in script.machines[view.owner[0]].told if isinstance(m, NameCut)][-1].next
    assert named is not None
    script.reach(named, CLOCK_S)
    return named


def store_cut(script: Script, clock: int) -> None:
    """All parts of the cut are at their backups."""
    view, name = script.view, CutId(clock, script.view.epoch)
    for p in range(4):
        script.machines[view.owner[p]].own_cuts[p] = name
        script.machines[view.backup[p]].cuts[p] = name
    for p in range(4):
        size = shard_size(script.job, p).cut
        script.tell(Received(view.backup[p], Stored(view.epoch, p, clock, size_bytes=size)))


def leave(script: Script, warning_s: float, *names: str) -> None:
    for name in names:
        script.tell(Notice(name, script.now_s + warning_s))


def fetches(script: Script) -> list[tuple[str, Fetch]]:
    """(machine, fetch) of the newest view's change."""
    epoch = script.view.epoch
    found = [
        (name, fetch)
        for name in script.machines
        for fetch in script.told(name, Fetch)
        if fetch.epoch == epoch
    ]
    return list(dict.fromkeys(found))


def server(script: Script) -> str:
    """A transient machine that serves, not partition 0, whose owner reports."""
    return next(name for name in script.view.owner if name != script.view.owner[0])


def test_a_notice_too_short_for_what_must_move_goes_back_at_once(scripts: Any) -> None:
    script = trained(scripts)
    committed = script.record.committed.clock
    script.reach(committed + 3, CLOCK_S)
    leaver = server(script)
    leave(script, 0.2, leaver)
    view = script.views[-1]
    assert view.rolled_back and view.base == committed and view.redone == 3
    assert leaver not in script.view.members
    assert f"notice for {leaver}: {leaver} goes in 0.2 s, and its " in script.reason
    assert f"back to clock {committed} at once, 3 clocks again" in script.reason
    (note,) = script.events_of(ShortNoticeJudged)
    assert note.machines == (leaver,) and note.way is Way.ROLL_BACK
    assert note.left_s == pytest.approx(0.2) and note.needed_s > 0.4
    assert note.expected_s["roll back"] < note.expected_s["move"]
    # Nobody asks the leaver for anything, and it is let go.
    assert all(fetch.source.node != leaver for _, fetch in fetches(script))
    assert script.released == [leaver]


def test_a_notice_that_is_long_enough_changes_nothing(scripts: Any) -> None:
    script = trained(scripts)
    script.reach(script.record.committed.clock + 3, CLOCK_S)
    leaver = server(script)
    leave(script, 60.0, leaver)
    assert not script.views[-1].rolled_back and script.views[-1].redone == 0
    assert not script.events_of(ShortNoticeJudged)
    assert any(fetch.source.node == leaver for _, fetch in fetches(script))
    assert leaver not in script.view.holders  # it may end what it computes


@pytest.mark.parametrize("unknown", ["too small", "at once", "allreduce"])
def test_where_links_are_not_known_to_be_slow_everything_is_moved(scripts: Any, unknown: str) -> None:
    if unknown == "too small":
        script = scripts(make_job(clocks=1000, partitions=4))
        script.up("r0", "t0", "t1", "t2")
        script.wait(1.5)
        named = send_cut(script)
        script.wait(4.0)
        store_cut(script, named)
    else:
        script = trained(scripts, travel_s=0.0 if unknown == "at once" else 4.0)
        if unknown == "allreduce":
            script = scripts(make_job("allreduce", clocks=1000, partitions=4))
            script.up("r0", "t0", "t1", "t2")
            script.wait(1.5)
            script.commit_cut()
    script.reach(script.record.committed.clock + 3, CLOCK_S)
    leave(script, 0.01, script.view.owner[-1])
    assert not script.events_of(ShortNoticeJudged)
    assert not script.views[-1].rolled_back


def test_a_machine_that_serves_nothing_costs_no_rollback(scripts: Any) -> None:
    script = trained(scripts, transient=4)
    worker = next(f"t{index}" for index in range(4) if f"t{index}" not in script.view.owner)
    leave(script, 0.01, worker)
    assert script.released == [worker]
    assert not script.views[-1].rolled_back and not script.events_of(ShortNoticeJudged)


def test_a_cut_that_is_about_to_arrive_is_waited_for_while_clocks_go_on(scripts: Any) -> None:
    script = trained(scripts, travel_s=2.0)
    first = script.record.committed.clock
    second = send_cut(script)
    assert second > first + 2
    script.reach(second + 1, CLOCK_S)
    script.wait(1.5)  # of the 2 s that the cut before took
    epoch, claimed = script.view.epoch, script.record.claimed
    leaver = server(script)
    leave(script, 0.9, leaver)
    assert (script.view.epoch, script.record.claimed) == (epoch, claimed)
    (note,) = script.events_of(ShortNoticeJudged)
    assert note.way is Way.FINISH_CUT
    assert f"the cut at clock {second} arrives first" in note.reason
    script.wait(0.4, step_s=0.1)
    script.reach(second + 2, CLOCK_S)
    assert script.view.epoch == epoch
    store_cut(script, second)
    assert script.record.committed.clock == second
    view = script.views[-1]
    assert view.rolled_back and view.base == second and view.redone == 2
    assert script.released == [leaver]
    assert [note.way for note in script.events_of(ShortNoticeJudged)] == [Way.FINISH_CUT, Way.ROLL_BACK]


def test_a_cut_that_is_late_is_not_waited_for_to_the_end(scripts: Any) -> None:
    script = trained(scripts, travel_s=2.0)
    first = script.record.committed.clock
    second = send_cut(script)
    script.reach(second + 1, CLOCK_S)
    script.wait(1.5)
    leave(script, 1.2, server(script))
    script.wait(1.1, step_s=0.05)
    view = script.views[-1]
    assert view.rolled_back and view.base == first
    assert len(script.released) == 1  # before its time was over


def test_with_an_owner_dead_nothing_is_waited_for(scripts: Any) -> None:
    script = trained(scripts, travel_s=2.0)
    second = send_cut(script)
    script.reach(second + 1, CLOCK_S)
    script.wait(1.5)
    epoch = script.view.epoch
    leave(script, 1.2, server(script))
    assert script.view.epoch == epoch
    script.tell(NodeDown(script.view.owner[0], Loss.PROCESS_DIED))
    assert script.view.epoch > epoch and script.views[-1].rolled_back


def test_the_committed_cut_is_never_given_up_for_a_short_notice(scripts: Any) -> None:
    """The leaver alone has a part of it: what it has is moved, in the time that there is."""
    script = trained(scripts)
    leaver = server(script)
    p = script.view.owner.index(leaver)
    del script.machines[script.view.backup[p]].cuts[p]
    leave(script, 0.2, leaver)
    assert script.events_of(ShortNoticeJudged)[-1].way is Way.MOVE
    assert "nowhere else" in script.events_of(ShortNoticeJudged)[-1].reason
    assert not script.views[-1].rolled_back


def test_a_leaver_that_gave_all_it_had_may_die_before_the_others_are_done(scripts: Any) -> None:
    script = trained(scripts, transient=6)
    one, other = list(dict.fromkeys(script.view.owner))[:2]
    epoch = script.view.epoch
    held: list[tuple[str, Installed]] = []

    def held_back(command: Any) -> None:
        """Copies from `other` take their time."""
        if isinstance(command, Send) and isinstance(command.message, Fetch):
            fetch = command.message
            if fetch.source.node == other:
                held.append((command.to, Installed(fetch.epoch, fetch.partition, fetch.role)))
                script.machines[command.to].staged.append(fetch)
                return
        do(command)

    do, script.do = script.do, held_back  # the script's own network, made slow
    leave(script, 60.0, one, other)
    assert script.view.epoch == epoch and held
    claimed = script.record.claimed
    script.tell(NodeDown(one, Loss.EVICTED))
    assert script.record.claimed == claimed
    for node, installed in dict.fromkeys(held):
        assert installed.role is Role.OWNER
        script.tell(Received(node, installed))
    assert script.view.epoch == claimed
    assert not script.views[-1].rolled_back
    script.tell(Tick())
    assert script.released == [other]


@pytest.mark.parametrize(("share", "stays"), [(None, True), (0.9, True), (0.1, False)])
def test_a_leaver_ends_its_part_of_a_clock_where_it_computes_for_long(
    scripts: Any, share: float | None, stays: bool
) -> None:
    """A second change costs more than little work that is done again; links that are slow do not make it more."""
    script: Script = scripts(make_job(clocks=1000, partitions=4), worth_finishing_s=0.3)
    script.up("r0", "t0", "t1", "t2")
    script.wait(1.5)
    for clock in (1, 2, 3):
        script.reach(clock, CLOCK_S)
    if share is not None:
        for at_s in (100.0, 200.0):
            script.tell(Measured("t1", at_s, 0, 0, 0, compute_s=share * at_s, push_s=0.0))
    leave(script, 60.0, "t1")
    assert "t1" not in script.view.owner
    assert ("t1" in script.view.members) == stays
