"""Cuts and backups of nodes: what a backup holds, refuses and gives back, and what a move takes."""

from __future__ import annotations

import numpy as np

from agileml.core.node.backup import Backup
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense
from agileml.core.protocol.commands import Send
from agileml.core.protocol.messages import (
    CONTROLLER,
    Announce,
    Fetch,
    Installed,
    Missed,
    NameCut,
    PartRefused,
    Prepare,
    Promise,
    Push,
    Role,
    Source,
    SourceKind,
    Status,
    Stored,
)
from agileml.core.protocol.view import INITIAL, CutId
from tests.agileml.core.node.small_cluster import Cluster


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


def test_the_controller_hears_at_once_that_a_cut_is_copied_out_of_a_replica():
    """Else a short one would seem to take no time, and the next would come at once."""
    cluster = Cluster(mode="allreduce", is_resident=True)
    for name in "ab":
        cluster.tell(name, Prepare(1, 0, INITIAL))
        cluster.tell(name, Fetch(1, 0, Role.OWNER, INITIAL, Source(SourceKind.INITIAL, "")))
    for name in "ab":
        cluster.tell(name, Announce(cluster.view(1, "a", share=(("a", 0b01), ("b", 0b10))), 10))
        cluster.tell(name, NameCut(1, INITIAL, 2))
    node = cluster.nodes["a"]
    told = []
    for clock in (0, 1, 2):
        node.server.push("a", Push(1, 0, clock, 0b11, _ones(cluster)), 1.0, given=False)
        sent = [c.message for c in node.tick(1.0) if isinstance(c, Send) and c.to == CONTROLLER]
        told.append([message.versions for message in sent if isinstance(message, Status)])
    assert told == [[], [((0, 2),)], []]


def _ones(cluster):
    tables = cluster.job.layout.tables
    return Contribution(
        tuple(None if t.resident else Dense(np.ones(t.rows * t.columns, t.dtype)) for t in tables)
    )


def test_a_backup_is_made_of_the_replica_that_is_named_and_not_of_an_older_one_of_its_own():
    """By all-reduce every machine has a replica, and one may be behind by a clock when a change freezes them."""
    cluster = Cluster(mode="allreduce")
    for name in "ab":
        cluster.tell(name, Prepare(1, 0, INITIAL))
        cluster.tell(name, Fetch(1, 0, Role.OWNER, INITIAL, Source(SourceKind.INITIAL, "")))
    for name in "ab":
        cluster.tell(name, Announce(cluster.view(1, "a", share=(("a", 0b01), ("b", 0b10))), 10))
    cluster.nodes["a"].server.push("a", Push(1, 0, 0, 0b11, _ones(cluster)), 1.0, given=False)
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
