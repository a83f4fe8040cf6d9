"""A node's fences, promises and moves: real nodes that talk to each other at once."""

from __future__ import annotations

from collections import deque

import numpy as np

from agileml.core.node.backup import Backup
from agileml.core.node.node import Node, Timers
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense, Sparse
from agileml.core.protocol.commands import Leave, LoadSlices, Send
from agileml.core.protocol.messages import (
    CONTROLLER,
    Ack,
    Announce,
    Behind,
    Copy,
    Fetch,
    Heard,
    Installed,
    Limit,
    Load,
    Missed,
    NameCut,
    Params,
    Part,
    PartRefused,
    Prepare,
    Promise,
    Pull,
    Push,
    Release,
    Role,
    Source,
    SourceKind,
    Status,
    Stored,
)
from agileml.core.protocol.view import INITIAL, CutId, View
from straggler.coverage import span
from tests.agileml.core.fixtures import make_job
from tests.model.toy import toy_job

ROWS = (None, None, None)


class Stores:
    def __init__(self, job):
        toy, _ = toy_job("bsp", "momentum", job.slices, job.parts, job.layout.partitions, job.clocks)
        self.job, self.values = job, {table.name: toy.initial(table) for table in toy.tables()}

    def initial(self, partition):
        return self.job.layout.blocks(self.values, partition)

    def release(self):
        pass

    def saved(self, name, partition):
        raise AssertionError("no checkpoint here")


class Cluster:
    """Nodes a and b; what they say to the controller and to workers x and y is collected."""

    def __init__(self, partitions=1, mode="bsp"):
        self.job = make_job(mode, slices=2, partitions=partitions, clocks=10)
        self.nodes = {
            name: Node(name, self.job, Timers(status_s=1e9, retry_s=1e9), Stores(self.job)) for name in "ab"
        }
        self.heard = []
        self.left = []
        self.parts = []  # what went between the two of cuts and shards

    def tell(self, to, message, sender=CONTROLLER):
        queue = deque([(sender, to, message)])
        while queue:
            sender, to, message = queue.popleft()
            if to not in self.nodes:
                self.heard.append((sender, to, message))
                continue
            for command in self.nodes[to].handle(sender, message, 1.0):
                if isinstance(command, Send):
                    if isinstance(command.message, Part | PartRefused | Copy):
                        self.parts.append(command.message)
                    queue.append((to, command.to, command.message))
                else:
                    self.left.append((to, command))

    def take(self, kind):
        found = [(sender, m) for sender, _, m in self.heard if isinstance(m, kind)]
        self.heard = [h for h in self.heard if not isinstance(h[2], kind)]
        return found

    def view(self, epoch, owner, **changes):
        n = self.job.layout.partitions
        share = (("x", 0b01), ("y", 0b10))
        values = {
            "stage": 2,
            "members": ("a", "b"),
            "owner": (owner,) * n,
            "backup": ("b",) * n,
            "share": share,
            "previous": ("", ""),
            "base": 0,
            "open": (),
            "timeline": 1,
            "committed": INITIAL,
        }
        return View(epoch=epoch, **{**values, **changes})  # fmt: skip

    def start(self, owner="a"):
        for name in self.nodes:
            self.tell(name, Prepare(1, 0, INITIAL))
        for p in range(self.job.layout.partitions):
            self.tell(owner, Fetch(1, p, Role.OWNER, INITIAL, Source(SourceKind.INITIAL, "")))
        for name in self.nodes:
            self.tell(name, Announce(self.view(1, owner), 10))
        self.heard.clear()

    def push(self, to, epoch, clock, unit, sender="x", partition=0):
        rng = np.random.default_rng(10 * clock + unit)
        start, stop = self.job.layout.range_of(1, partition)
        dense = Dense(rng.normal(size=stop - start).astype(np.float32))
        self.tell(
            to, Push(epoch, partition, clock, span(unit, unit + 1), Contribution((None, dense, None))), sender
        )

    def clock(self, to, epoch, clock):
        for unit in (0, 1):
            self.push(to, epoch, clock, unit)

    def rows(self, to, epoch, clock, rows):
        """A clock that changes these rows of the table `sparse`."""
        for unit in (0, 1):
            at = np.array(rows[unit::2], np.int32)
            block = Sparse(at, np.full((len(at), 3), 1.5, np.float32))
            contribution = Contribution((None, None, block if len(at) else None))
            self.tell(to, Push(epoch, 0, clock, span(unit, unit + 1), contribution), "x")

    def pull(self, to, epoch, clock):
        self.tell(to, Pull(epoch, 0, clock, ROWS), "x")
        return [m for _, m in self.take(Params)] + [m for _, m in self.take(Behind)]


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


def test_a_cut_goes_to_the_backup_and_survives_its_owner():
    cluster = Cluster()
    cluster.start()
    cluster.tell("a", NameCut(1, INITIAL, 2))
    cluster.clock("a", 1, 0)
    assert cluster.take(Stored) == []
    cluster.clock("a", 1, 1)
    assert [(m.partition, m.clock) for _, m in cluster.take(Stored)] == [(0, 2)]
    cluster.clock("a", 1, 2)
    committed = CutId(2, 1)
    cluster.tell("b", Prepare(2, 1, committed))
    assert [p for p, _ in cluster.take(Promise)[-1][1].backups] == [0]
    cluster.tell("b", Fetch(2, 0, Role.OWNER, committed, Source(SourceKind.BACKUP, "b")))
    view = cluster.view(2, "b", base=2, timeline=2, committed=committed)
    cluster.tell("b", Announce(view, 10))
    assert [m.version for m in cluster.pull("b", 2, 2)] == [2]


def test_a_backup_is_made_of_the_replica_that_is_named_and_not_of_an_older_one_of_its_own():
    """By all-reduce every machine has a replica, and one may be behind by a clock when a change freezes them."""
    cluster = Cluster(mode="allreduce")
    for name in "ab":
        cluster.tell(name, Prepare(1, 0, INITIAL))
        cluster.tell(name, Fetch(1, 0, Role.OWNER, INITIAL, Source(SourceKind.INITIAL, "")))
    for name in "ab":
        cluster.tell(name, Announce(cluster.view(1, "a", share=(("a", 0b01), ("b", 0b10))), 10))
    total = Contribution(
        tuple(Dense(np.ones(t.rows * t.columns, t.dtype)) for t in cluster.job.layout.tables)
    )
    cluster.nodes["a"].server.push("a", Push(1, 0, 0, 0b11, total), 1.0, given=False)
    for name in "ab":
        cluster.tell(name, Prepare(2, 1, INITIAL))
    versions = {name: promise.shards[0][1].version for name, promise in cluster.take(Promise)[-2:]}
    assert versions == {"a": 1, "b": 0}
    name = CutId(1, 2)
    cluster.tell("b", Fetch(2, 0, Role.BACKUP, name, Source(SourceKind.SHARD, "a")))
    assert [m.role for _, m in cluster.take(Installed)][-1] is Role.BACKUP
    cluster.tell("b", Prepare(3, 2, name))
    ((partition, state),) = cluster.take(Promise)[-1][1].backups
    assert (partition, state.version) == (0, 1)


def test_cuts_and_moves_take_what_changed_since_the_committed_cut():
    cluster = Cluster()
    cluster.start()
    cluster.tell("a", NameCut(1, INITIAL, 1))
    cluster.rows("a", 1, 0, [1, 4])
    assert cluster.parts[-1].only is None, "the backup has nothing yet"
    for name in "ab":
        cluster.tell(name, NameCut(1, CutId(1, 1), 2))
    cluster.rows("a", 1, 1, [4, 6, 9])
    part = cluster.parts[-1]
    assert (part.only.base, part.only.by_table[2].tolist()) == (CutId(1, 1), [4, 6, 9])
    cluster.rows("a", 1, 2, [0])  # the cut at clock 2 is aborted by a change that moves the partition
    for name in "ab":
        cluster.tell(name, Prepare(2, 1, CutId(1, 1)))
    cluster.tell("b", Fetch(2, 0, Role.OWNER, CutId(1, 1), Source(SourceKind.SHARD, "a")))
    copy = cluster.parts[-1].copy
    assert copy.only.by_table[2].tolist() == [0, 4, 6, 9] and len(copy.cut.blocks[2]) == 4
    view = cluster.view(2, "b", backup=("a",), base=3, committed=CutId(1, 1), open=())
    expected = cluster.nodes["a"].server.shard_cut(0, 1).blocks[2]
    cluster.tell("b", Announce(view, 10))
    (answer,) = cluster.pull("b", 2, 3)
    assert (answer.blocks[2] == expected).all()
    cluster.tell("b", NameCut(2, CutId(1, 1), 4))
    cluster.rows("b", 2, 3, [8])
    part = cluster.parts[-3]  # before the new backup refuses it and gets the whole one
    assert part.only.by_table[2].tolist() == [0, 4, 6, 8, 9]


def test_a_backup_that_lacks_the_committed_cut_gets_the_next_one_whole():
    cluster = Cluster()
    cluster.start()
    cluster.tell("a", NameCut(1, INITIAL, 1))
    cluster.rows("a", 1, 0, [1])
    for name in "ab":
        cluster.tell(name, NameCut(1, CutId(1, 1), 2))
    backup = cluster.nodes["b"].backup  # a part that no machine has is left out of a change
    cluster.nodes["b"].backup = Backup(backup.send, backup.committed)
    cluster.rows("a", 1, 1, [2])
    relative, refused, whole = cluster.parts[-3:]
    assert relative.only is not None and refused == PartRefused(1, 0, 2) and whole.only is None
    assert (whole.cut.blocks[2] == cluster.nodes["a"].server.shard_cut(0, 1).blocks[2]).all()
    assert [(m.partition, m.clock) for _, m in cluster.take(Stored)][-1] == (0, 2)


def test_a_cut_that_was_passed_is_reported_as_missed():
    cluster = Cluster()
    cluster.start()
    for clock in range(3):
        cluster.clock("a", 1, clock)
    cluster.tell("a", NameCut(1, INITIAL, 1))
    assert cluster.take(Missed) == [("a", Missed(1, 0, 1, 3))]


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
    cluster.tell("a", Heard(3))
    assert [p.clock for p in node.status().progress] == [3]
    held = [node.server.shard_cut(partition, 1).progress for partition in (0, 1)]
    assert [len(progress) for progress in held] == [1, 0], "progress that nobody will ask for piles up"


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
