"""A node's fences, promises and moves: real nodes that talk to each other at once."""

from __future__ import annotations

from agileml.core.node.node import MOST_NAMED
from agileml.core.protocol.commands import Leave, LoadSlices, Send
from agileml.core.protocol.messages import (
    CONTROLLER,
    Ack,
    Announce,
    Behind,
    ClockReport,
    Fetch,
    Installed,
    Limit,
    Load,
    NameCut,
    Params,
    Prepare,
    Promise,
    Pull,
    Release,
    ReportsReceived,
    Role,
    Source,
    SourceKind,
    Status,
    Stored,
    Unreachable,
)
from agileml.core.protocol.view import INITIAL
from tests.agileml.core.node.small_cluster import ROWS, Cluster


def test_a_pull_waits_for_its_version_and_is_answered_then():
    cluster = Cluster()
    cluster.start()
    assert [m.version for m in cluster.pull("a", 1, 0)] == [0]
    assert cluster.pull("a", 1, 1) == []
    cluster.clock("a", 1, 0)
    assert [m.version for _, m in cluster.take(Params)] == [1]


def test_whoever_asks_for_a_clock_that_is_done_everywhere_is_told_so():
    cluster = Cluster()
    cluster.start()
    for clock in range(3):
        cluster.clock("a", 1, clock)
    assert [m.version for m in cluster.pull("a", 1, 2)] == [2], "the version before is kept"
    cluster.push("a", 1, 3, 0)
    assert cluster.pull("a", 1, 2) == [Behind(1, 0, 2)]


def test_no_clock_from_the_limit_on_may_start():
    cluster = Cluster()
    for name in "ab":
        cluster.tell(name, Prepare(1, 0, INITIAL))
    cluster.tell("a", Fetch(1, 0, Role.OWNER, INITIAL, Source(SourceKind.INITIAL, "")))
    cluster.tell("a", Announce(cluster.view(1, "a"), 1))
    cluster.clock("a", 1, 0)
    assert cluster.pull("a", 1, 1) == []
    cluster.tell("a", Limit(1, 2))
    assert [m.version for _, m in cluster.take(Params)] == [1]


def test_after_a_promise_nothing_of_the_older_epoch_is_obeyed():
    cluster = Cluster()
    cluster.start()
    cluster.push("a", 1, 0, 0)
    cluster.take(Ack)
    cluster.tell("a", Prepare(2, 1, INITIAL))
    ((_, promise),) = cluster.take(Promise)
    assert promise.shards[0][1].pending == ((0, (1,)),)
    cluster.push("a", 1, 0, 1)
    assert cluster.take(Ack) == []
    assert cluster.pull("a", 1, 0) == []
    cluster.tell("a", NameCut(1, INITIAL, 1))
    cluster.tell("a", Announce(cluster.view(1, "a"), 10))
    cluster.tell("a", Prepare(2, 1, INITIAL))
    ((_, again),) = cluster.take(Promise)
    assert again == promise, "asked again, it answers the same"


def test_a_late_prepare_is_answered_with_the_newer_promise():
    cluster = Cluster()
    cluster.start()
    cluster.tell("a", Prepare(5, 1, INITIAL))
    cluster.tell("a", Prepare(3, 1, INITIAL))
    assert {m.epoch for _, m in cluster.take(Promise)} == {5}


def test_a_shard_moves_with_all_that_is_open_and_the_old_copy_stays_until_the_view():
    cluster = Cluster()
    cluster.start()
    cluster.clock("a", 1, 0)
    cluster.push("a", 1, 1, 0)
    for name in "ab":
        cluster.tell(name, Prepare(2, 1, INITIAL))
    cluster.tell("b", Fetch(2, 0, Role.OWNER, INITIAL, Source(SourceKind.SHARD, "a")))
    assert [m for _, m in cluster.take(Installed)] == [Installed(2, 0, Role.OWNER)]
    # The view is never written: the next change finds the shard where it was.
    cluster.take(Promise)
    for name in "ab":
        cluster.tell(name, Prepare(3, 1, INITIAL))
    promises = dict(cluster.take(Promise))
    assert [p for p, _ in promises["a"].shards] == [0]
    assert promises["b"].shards == ()
    # This time it is.
    cluster.tell("b", Fetch(3, 0, Role.OWNER, INITIAL, Source(SourceKind.SHARD, "a")))
    for name in "ab":
        cluster.tell(name, Announce(cluster.view(3, "b", base=1, open=((1, (("y", 0b10),)),)), 10))
    cluster.push("b", 3, 1, 1)
    assert [m.version for m in cluster.pull("b", 3, 2)] == [2]
    cluster.tell("a", Prepare(4, 3, INITIAL))
    assert cluster.take(Promise)[-1][1].shards == ()


def test_a_staged_copy_serves_as_soon_as_a_peer_speaks_the_new_epoch():
    cluster = Cluster()
    cluster.start()
    for name in "ab":
        cluster.tell(name, Prepare(2, 1, INITIAL))
    cluster.tell("b", Fetch(2, 0, Role.OWNER, INITIAL, Source(SourceKind.SHARD, "a")))
    cluster.tell("b", Limit(2, 10))
    cluster.push("b", 2, 0, 0)
    assert len(cluster.take(Ack)) == 1


def test_who_asks_before_the_view_is_here_is_answered_when_it_comes():
    """Views travel to each machine by themselves: a peer may have it first, and asks once."""
    cluster = Cluster()
    cluster.start()
    for name in "ab":
        cluster.tell(name, Prepare(2, 1, INITIAL))
    cluster.tell("b", Fetch(2, 0, Role.OWNER, INITIAL, Source(SourceKind.SHARD, "a")))
    assert cluster.pull("b", 2, 0) == [], "where the limit is now, the view says"
    assert cluster.pull("b", 2, 1) == []
    cluster.tell("b", Announce(cluster.view(2, "b"), 10))
    assert [m.version for _, m in cluster.take(Params)] == [0]
    cluster.clock("b", 2, 0)
    assert [m.version for _, m in cluster.take(Params)] == [1]


def test_a_limit_that_was_lowered_with_a_view_holds_for_who_asks_before_it():
    cluster = Cluster()
    cluster.start()
    cluster.tell("a", Prepare(2, 1, INITIAL))
    cluster.tell("a", Fetch(2, 0, Role.OWNER, INITIAL, Source(SourceKind.SHARD, "a")))
    cluster.clock("a", 2, 0)
    assert cluster.pull("a", 2, 1) == []
    cluster.tell("a", Announce(cluster.view(2, "a"), 1))
    assert cluster.take(Params) == []
    cluster.tell("a", Limit(2, 2))
    assert [m.version for _, m in cluster.take(Params)] == [1]


def test_a_view_that_comes_twice_changes_nothing():
    cluster = Cluster()
    cluster.start()
    cluster.clock("a", 1, 0)
    cluster.tell("a", Announce(cluster.view(1, "a"), 10))
    assert [m.version for m in cluster.pull("a", 1, 1)] == [1]


def test_a_part_of_another_epoch_is_not_taken():
    cluster = Cluster()
    cluster.start()
    cluster.tell("a", NameCut(1, INITIAL, 1))
    cluster.tell("b", Prepare(2, 1, INITIAL))
    cluster.clock("a", 1, 0)
    assert cluster.take(Stored) == []
    assert cluster.nodes["b"].backup.arrived(0) is None


def test_progress_of_partition_0_is_reported_until_it_is_heard_and_kept_nowhere_else():
    cluster = Cluster(partitions=2)
    cluster.start()
    for clock in range(4):
        for partition in (0, 1):
            for unit in (0, 1):
                cluster.push("a", 1, clock, unit, partition=partition)
    node = cluster.nodes["a"]
    assert [p.clock for p in node.status().progress] == [0, 1, 2, 3]
    cluster.tell("a", ReportsReceived(3))
    assert [p.clock for p in node.status().progress] == [3]
    held = [node.server.shard_cut(partition, 1).progress for partition in (0, 1)]
    assert [len(progress) for progress in held] == [1, 0], "progress that nobody will ask for piles up"


def test_reports_that_a_heartbeat_cannot_hold_follow_when_it_is_heard():
    """Heartbeats may be seconds apart, and clocks some milliseconds: the reports fell ever farther behind."""
    cluster = Cluster()
    cluster.start()
    cluster.nodes["a"].server.served(0, 1).progress = [
        ClockReport(clock, 0.0, 1, 0.0) for clock in range(600)
    ]
    cluster.tell("a", ReportsReceived(256))
    assert [(s.progress[0].clock, len(s.progress)) for _, s in cluster.take(Status)] == [(256, 256)]
    cluster.tell("a", ReportsReceived(256))
    assert cluster.take(Status) == [], "an answer that says nothing new asks for nothing"
    cluster.tell("a", ReportsReceived(512))
    assert cluster.take(Status) == [], "the rest comes with the next heartbeat"


def test_slices_are_asked_for_once_and_reported_when_they_are_here():
    cluster = Cluster()
    cluster.tell("a", Load(0b01))
    assert cluster.left == [("a", LoadSlices(0b01))]


def test_a_node_that_is_released_leaves():
    cluster = Cluster()
    cluster.start()
    cluster.tell("a", Prepare(2, 1, INITIAL))
    cluster.tell("a", Release(1))
    assert cluster.left == [], "a release of an older epoch"
    cluster.tell("a", Release(2))
    assert cluster.left == [("a", Leave())]


def test_the_status_says_what_is_served():
    cluster = Cluster()
    cluster.start()
    cluster.clock("a", 1, 0)
    status = cluster.nodes["a"].status()
    assert isinstance(status, Status)
    assert (status.epoch, status.versions) == (1, ((0, 1),))
    assert cluster.nodes["b"].status().versions == ()


def test_a_machine_says_with_each_heartbeat_whom_it_does_not_reach():
    cluster = Cluster()
    cluster.start()
    node = cluster.nodes["a"]

    def said(now_s):
        sent = [command.message for command in node.tick(now_s) if isinstance(command, Send)]
        assert any(isinstance(message, Status) for message in sent)
        return [message.names for message in sent if isinstance(message, Unreachable)]

    assert said(1e10) == []
    node.lost("x")
    node.lost("b")
    node.lost(CONTROLLER)
    assert said(2e10) == said(3e10) == [("b", "x")]
    node.found("x")
    assert said(4e10) == [("b",)]
    node.found("b")
    assert said(5e10) == []
    for number in range(1000):
        node.lost(f"m{number}")
    assert [len(names) for names in said(6e10)] == [MOST_NAMED]


def test_machines_that_came_and_went_by_the_hundreds_are_forgotten():
    cluster = Cluster()
    cluster.start()
    node = cluster.nodes["a"]
    for number in range(300):
        cluster.tell("a", Pull(1, 0, 0, ROWS), f"m{number}")
    for name in cluster.nodes:
        cluster.tell(name, Prepare(2, 1, INITIAL))
    cluster.tell("a", Fetch(2, 0, Role.OWNER, INITIAL, Source(SourceKind.SHARD, "a")))
    cluster.tell("a", Announce(cluster.view(2, "a"), 10))
    assert node._backoff._received_s.keys() <= {"a", "b", CONTROLLER}
