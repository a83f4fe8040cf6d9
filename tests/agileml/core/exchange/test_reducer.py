"""A node's part in an all-reduce: the order of sums, pausing between clocks, and what is lost with a group."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from agileml.core.compute.contract import initial_values
from agileml.core.node.node import Node
from agileml.core.node.retry import Timers
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense
from agileml.core.protocol.commands import (
    Abandon,
    Begin,
    Begun,
    Compute,
    Computed,
    Form,
    Introduce,
    Met,
    NodeCommand,
    Reduce,
    Reduced,
    Send,
)
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import (
    CONTROLLER,
    Announce,
    Fetch,
    Meet,
    Pause,
    Prepare,
    Promise,
    Role,
    Source,
    SourceKind,
    Status,
)
from agileml.core.protocol.view import INITIAL, NOBODY, View
from tests.model.toy import toy_job

TOY, JOB = toy_job("allreduce", "sgd", 8, 1, 2, 10)
HALVES = (0b00001111, 0b11110000)
VIEW = View(
    epoch=1,
    stage=1,
    members=("a", "b"),
    owner=("a", "a"),
    backup=("a", "a"),
    share=(("a", HALVES[0]), ("b", HALVES[1])),
    previous=(NOBODY,) * 8,
    base=0,
    open=(),
    timeline=1,
    committed=INITIAL,
)


class Stores:
    def initial(self, partition):
        return JOB.layout.blocks(initial_values(TOY, JOB.layout.tables), partition)

    def saved(self, name, partition):
        raise AssertionError(name)

    def release(self):
        pass


@dataclass
class Rig:
    """One node, and everything that it asked for."""

    name: str = "b"
    view: View = VIEW
    rules: Job = JOB
    node: Node = field(init=False)
    asked: list[NodeCommand] = field(default_factory=list)

    def __post_init__(self):
        self.node = Node(self.name, self.rules, Timers(), Stores())
        self.tell(Prepare(1, 0, INITIAL))
        for partition in range(2):
            self.tell(Fetch(1, partition, Role.OWNER, INITIAL, Source(SourceKind.INITIAL, NOBODY)))
        self.tell(Announce(self.view, 10))

    def do(self, commands):
        """Carry out what a node asks, but sums."""
        for command in commands:
            self.asked.append(command)
            if isinstance(command, Begin):
                self.do(self.node.happened(Begun(command, ((None, None),) * 2), 0.0))

    def tell(self, message, sender=CONTROLLER):
        self.do(self.node.handle(sender, message, 0.0))

    def happen(self, event):
        self.do(self.node.happened(event, 0.0))

    def taken(self, kind):
        """What was asked of a kind since the last time."""
        found = [command for command in self.asked if isinstance(command, kind)]
        self.asked = [command for command in self.asked if not isinstance(command, kind)]
        return found

    def sent(self, kind):
        return [command for command in self.taken(Send) if isinstance(command.message, kind)]

    def compute(self, partitions=(0, 1), job=None):
        """The worker's share of its clock is computed, for some partitions."""
        if job is None:
            (job,) = self.taken(Compute)[-1:] or [self.job]
        self.job = job
        for bundle in job.bundles:
            for partition in partitions:
                found = Computed(job.timeline, job.clock, bundle, ((partition, share(partition)),))
                self.happen(found)

    def add_up(self, *, pause=False):
        """The group answers everything."""
        answered = []
        while asked := self.taken(Reduce):
            for a in asked:
                blocks = tuple(block * 2 for block in a.blocks)
                self.happen(
                    Reduced(a.epoch, a.clock, a.partition, blocks, a.loss, a.examples, a.pause or pause)
                )
                answered.append((a.clock, a.partition))
        return answered


def share(partition):
    blocks = []
    for index, table in enumerate(JOB.layout.tables):
        start, stop = JOB.layout.range_of(index, partition)
        blocks.append(Dense(np.ones(stop - start, table.dtype)))
    return Contribution(tuple(blocks), 3.0, 4)


def test_partitions_are_added_up_last_one_first_whatever_is_computed_first():
    rig = Rig()
    assert rig.taken(Form) == [Form(1, ("a", "b"))]
    rig.compute([0])
    assert not rig.taken(Reduce)
    rig.compute([1])
    asked = rig.taken(Reduce)
    assert [(r.clock, r.partition) for r in asked] == [(0, 1), (0, 0)]
    assert (asked[1].loss, asked[1].examples, asked[1].pause) == (3.0, 4, False)
    for r in asked:
        rig.happen(Reduced(1, 0, r.partition, r.blocks, r.loss, r.examples, False))
    assert rig.node.server.versions(1) == ((0, 1), (1, 1))
    rig.compute()
    assert rig.add_up() == [(1, 1), (1, 0)]


def test_a_machine_without_work_adds_zeros_clock_after_clock():
    rig = Rig(view=replace(VIEW, share=(("a", 0b11111111),), owner=("a", "b")))
    for clock in range(3):
        asked = rig.taken(Reduce)
        assert [(r.clock, r.partition) for r in asked] == [(clock, 1), (clock, 0)]
        assert not any(block.any() for r in asked for block in r.blocks)
        for r in asked:
            rig.happen(Reduced(1, clock, r.partition, values(r.partition), 0.0, 0, False))


def test_a_table_that_no_machine_updated_keeps_its_values_as_with_servers():
    """With momentum a step along zeros moves it."""
    alone = replace(VIEW, share=(("a", 0b11111111),), owner=("a", "b"))
    rig = Rig(view=alone, rules=toy_job("allreduce", "momentum", 8, 1, 2, 10)[1])
    served = [rig.node.server.served(partition, 1) for partition in range(2)]
    seen = []
    for clock in range(3):
        for r in rig.taken(Reduce):
            blocks = r.blocks if clock == 1 else values(r.partition)
            rig.happen(Reduced(1, clock, r.partition, blocks, 0.0, 0, False))
        seen.append([shard.blocks[1].copy() for shard in served])
    moved = [any((b != a).any() for a, b in zip(*two, strict=True)) for two in pairwise(seen)]
    assert moved == [False, True]


def test_everybody_pauses_after_the_clock_in_which_anybody_was_told_to():
    told, other = Rig("a"), Rig("b")
    told.tell(Pause(1))
    for rig in (told, other):
        rig.compute()
    flags = [[r.pause for r in rig.taken(Reduce)] for rig in (told, other)]
    assert flags == [[False, True], [False, False]]
    for rig in (told, other):
        for partition, pause in ((1, False), (0, True)):
            rig.happen(Reduced(1, 0, partition, values(partition), 0.0, 0, pause))
        (status,) = rig.sent(Status)[-1:]
        assert status.message.is_paused and status.message.versions == ((0, 1), (1, 1))
        rig.compute()  # of the next clock: it is kept, not added up
        assert not rig.taken(Reduce)


def values(partition):
    return tuple(block.values for block in share(partition).blocks)


def test_what_was_computed_while_paused_serves_under_the_next_view():
    rig = Rig()
    rig.compute()
    rig.add_up(pause=True)
    rig.compute()
    rig.tell(Prepare(2, 1, INITIAL))
    assert rig.taken(Abandon)
    for partition in range(2):
        rig.tell(Fetch(2, partition, Role.OWNER, INITIAL, Source(SourceKind.SHARD, "b")))
    rig.taken(Compute)
    rig.tell(Announce(replace(VIEW, epoch=2, base=1, open=((1, (("a", 15), ("b", 240))),)), 10))
    assert [(r.epoch, r.clock, r.partition) for r in rig.taken(Reduce)] == [(2, 1, 1), (2, 1, 0)]
    assert not rig.taken(Compute)


def test_what_was_with_the_group_when_a_machine_died_is_computed_again():
    rig = Rig()
    rig.compute([1])  # partition 0 is still being computed
    (away,) = rig.taken(Reduce)
    away.blocks[0].fill(np.nan)  # sums are made in place
    rig.tell(Prepare(2, 1, INITIAL))
    promise = rig.sent(Promise)[-1]
    assert [state.version for _, state in promise.message.shards] == [0, 0]
    for partition in range(2):
        rig.tell(Fetch(2, partition, Role.OWNER, INITIAL, Source(SourceKind.SHARD, "b")))
    rig.tell(Announce(replace(VIEW, epoch=2, open=((0, (("b", 240), ("b", 15))),)), 10))
    rig.happen(Reduced(1, 0, 1, away.blocks, 0.0, 0, False))  # too late
    assert rig.node.server.versions(2) == ((0, 0), (1, 0))
    rig.compute([0], rig.job)  # the rest of the first computation is of no use
    assert not rig.taken(Reduce)
    jobs = rig.taken(Compute)
    assert sorted(b for job in jobs for b in job.bundles) == [15, 240]
    for job in jobs:
        rig.compute([1, 0], job)
    asked = rig.taken(Reduce)
    assert [(r.epoch, r.partition) for r in asked] == [(2, 1), (2, 0)]
    assert all((block == 2).all() for r in asked for block in r.blocks)


def test_machines_meet_over_messages_until_a_sum_is_back():
    rig = Rig()
    rig.happen(Met(1, "0/1", b"somewhere"))
    assert [(s.to, s.message) for s in rig.sent(Meet)] == [("a", Meet(1, "0/1", b"somewhere"))]
    rig.tell(Meet(1, "0/0", b"elsewhere"), "a")
    assert rig.taken(Introduce) == [Introduce(1, "0/0", b"elsewhere")]
    rig.tell(Meet(7, "0/0", b"of another epoch"), "a")
    assert not rig.taken(Introduce)
    rig.do(rig.node.tick(10.0))
    rig.do(rig.node.tick(20.0))
    assert rig.sent(Meet)
    rig.compute()
    rig.add_up()
    rig.do(rig.node.tick(30.0))
    rig.do(rig.node.tick(60.0))
    assert not rig.sent(Meet)
