"""How far a change is."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.change.change_plan import plan_change
from agileml.core.change.run import ChangePhase, ChangeRun
from agileml.core.protocol.inputs import NodeUp
from agileml.core.protocol.messages import Installed, Promise, Role, Source, SourceKind
from agileml.core.protocol.view import INITIAL
from agileml.core.stage.placement import StageRule
from agileml.events.terms import Tier
from tests.agileml.core.change.test_triggers import make
from tests.agileml.core.fixtures import make_job


def installing(members, job):
    run = ChangeRun(4, "start", 0.0, ChangePhase.INSTALL)
    run.change = plan_change(job, StageRule(), 4, None, INITIAL, {}, members.machines(frozenset()))
    return run


def test_promises_count_for_their_epoch_and_while_they_are_asked_for():
    run = ChangeRun(4, "start", 0.0)
    run.promise("a", Promise(4, (), (), ()))
    assert run.unpromised(["a", "b"]) == ["a", "b"]
    run.phase = ChangePhase.PREPARE
    run.promise("a", Promise(4, (), (), ()))
    run.promise("b", Promise(3, (), (), ()))
    assert run.unpromised(["a", "b"]) == ["b"]


def test_a_fetch_is_outstanding_until_it_is_installed_in_this_epoch():
    run = installing(make("r", "t"), make_job(partitions=2))
    assert len(list(run.outstanding())) == 2
    run.installed("r", Installed(3, 0, Role.OWNER))
    run.installed("r", Installed(4, 0, Role.BACKUP))
    assert len(list(run.outstanding())) == 2
    run.installed("r", Installed(4, 0, Role.OWNER))
    run.installed("r", Installed(4, 0, Role.OWNER))
    assert [fetch.partition for _, fetch in run.outstanding()] == [1]


def test_the_fetches_of_a_change_are_looked_through_once_however_many_answers_come():
    looked = []

    class Counted(tuple):
        def __iter__(self):
            looked.append(len(self))
            return super().__iter__()

    members = make("r", "t", "u")
    run = installing(members, make_job(partitions=6))
    fetches = run.change.fetches
    run.change = replace(run.change, fetches=Counted(fetches))
    for answered, (node, fetch) in enumerate(fetches, 1):
        run.installed(node, Installed(4, fetch.partition, fetch.role))
        assert run.is_good(members)
        assert len(list(run.outstanding())) == len(fetches) - answered
    assert looked == [6]


def test_a_source_may_go_once_it_has_sent_everything():
    members = make("r", "t", "u")
    run = installing(members, make_job(partitions=2))
    members.up(NodeUp("gone", Tier.TRANSIENT, True), 0.0)
    source = Source(SourceKind.SHARD, "gone")
    fetches = tuple((node, replace(fetch, source=source)) for node, fetch in run.change.fetches)
    run.change = replace(run.change, fetches=fetches)
    (one, first), (other, second) = fetches
    run.installed(one, Installed(4, first.partition, first.role))
    members.nodes["gone"].is_silent = True
    assert not run.is_good(members)
    for _ in range(2):  # a repeat is no news
        run.installed(other, Installed(4, second.partition, second.role))
    assert run.is_good(members)


def test_a_change_is_good_while_everybody_it_counts_on_is_alive_and_stays():
    members = make("r", "t", "u")
    run = installing(members, make_job())
    assert run.is_good(members)
    members.nodes["t"].deadline_s = 60.0
    assert not run.is_good(members)
    members.nodes["t"].deadline_s = None
    members.nodes["u"].is_silent = True
    assert not run.is_good(members)


def test_the_only_reliable_machine_may_have_a_notice():
    members = make("r", "t")
    run = installing(members, make_job())
    members.nodes["r"].deadline_s = 60.0
    assert run.is_good(members)
