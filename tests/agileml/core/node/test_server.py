"""What a server repeats, and what it keeps, over a long time."""

from __future__ import annotations

from itertools import count

from agileml.core.protocol.commands import Send
from agileml.core.protocol.messages import NameCut, Part, PartAck, Pull
from agileml.core.protocol.view import INITIAL, CutId
from tests.agileml.core.node.small_cluster import ROWS
from tests.agileml.core.node.test_node import Cluster

LONG_AFTER_S = count(1e12, 1e12)  # each longer than any wait before a repeat


def parts(node):
    """The parts that the node repeats; its first round only takes the time at which it asks."""
    node.tick(next(LONG_AFTER_S))
    sent = node.tick(next(LONG_AFTER_S))
    parts = [command for command in sent if isinstance(command, Send) and isinstance(command.message, Part)]
    return [(command.to, command.message.cut.clock) for command in parts]


def make():
    cluster = Cluster()
    cluster.start()
    cluster.nodes["b"].promised = 99  # the backup does not answer
    return cluster, cluster.nodes["a"]


def test_a_part_is_repeated_until_the_backup_has_it():
    cluster, node = make()
    cluster.tell("a", NameCut(1, INITIAL, 1))
    cluster.clock("a", 1, 0)
    assert parts(node) == [("b", 1)] == parts(node)
    node.server.part_acked(PartAck(1, 0, 7))
    assert parts(node) == [("b", 1)]
    node.server.part_acked(PartAck(1, 0, 1))
    assert parts(node) == []


def test_a_part_is_not_repeated_once_its_cut_is_committed():
    cluster, node = make()
    cluster.tell("a", NameCut(1, INITIAL, 1))
    cluster.clock("a", 1, 0)
    cluster.tell("a", NameCut(1, CutId(1, 1), None))
    assert parts(node) == []


def test_a_cut_name_that_was_overtaken_changes_nothing():
    cluster, node = make()
    cluster.tell("a", NameCut(1, INITIAL, 3))
    for late in (NameCut(1, INITIAL, None), NameCut(1, INITIAL, 2)):
        cluster.tell("a", late)
    for clock in range(3):
        cluster.clock("a", 1, clock)
    assert parts(node) == [("b", 3)]


def test_old_cuts_do_not_pile_up():
    cluster = Cluster()
    cluster.start()
    (shard,) = cluster.nodes["a"].server._copies[0].values()
    for clock in range(9):
        cluster.tell("a", NameCut(1, CutId(clock, 1) if clock else INITIAL, clock + 1))
        cluster.clock("a", 1, clock)
        assert len(shard.cuts.known) <= 2
    assert shard.version == 9


def test_a_message_is_not_the_occasion_to_look_at_every_shard():
    """A machine that serves hundreds of partitions gets hundreds of messages from every worker in each clock."""
    looked = []

    class Copies(dict):
        def __contains__(self, epoch):
            looked.append(epoch)
            return super().__contains__(epoch)

        def get(self, epoch, default=None):
            looked.append(epoch)
            return super().get(epoch, default)

    cluster = Cluster(partitions=32)
    cluster.start()
    server = cluster.nodes["a"].server
    for partition, copies in server._copies.items():
        server._copies[partition] = Copies(copies)
    cluster.nodes["a"].handle("x", Pull(1, 7, 0, ROWS), 0.0)
    assert 1 <= len(looked) <= 8
    assert not server.at_limit(1)
    server.limit = 0
    assert server.at_limit(1)
    assert not server.at_limit(2)
