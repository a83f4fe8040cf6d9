"""Nodes that hand each other their messages, in one process."""

from __future__ import annotations

from collections import deque

import numpy as np

from agileml.core.node.node import Node
from agileml.core.node.retry import Timers
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense, Sparse
from agileml.core.parameters.optimizer import optimizer
from agileml.core.protocol.commands import Send
from agileml.core.protocol.messages import (
    CONTROLLER,
    Announce,
    Behind,
    Copy,
    Fetch,
    Params,
    Part,
    PartRefused,
    Prepare,
    Pull,
    Push,
    Role,
    Source,
    SourceKind,
)
from agileml.core.protocol.view import INITIAL, View
from straggler.coverage import span
from tests.agileml.core.fixtures import make_job
from tests.model.toy import ToyReplica, toy_job

ROWS = (None, None, None)


class Stores:
    def __init__(self, job):
        sizes = job.slices, job.parts, job.layout.partitions, job.clocks
        toy, _ = toy_job("bsp", "momentum", *sizes, is_resident=job.is_resident)
        self.job, self.values = job, {table.name: toy.initial(table) for table in toy.tables()}

    def initial(self, partition):
        return self.job.layout.blocks(self.values, partition)

    def release(self):
        pass

    def saved(self, name, partition):
        raise AssertionError("no checkpoint here")


class Cluster:
    """Nodes a and b; what they say to the controller and to workers x and y is collected."""

    def __init__(self, partitions=1, mode="bsp", *, is_resident=False):
        self.job = make_job(mode, slices=2, partitions=partitions, clocks=10, is_resident=is_resident)
        rule = optimizer("sgd", learning_rate=1.0)
        self.nodes = {
            name: Node(
                name,
                self.job,
                Timers(status_s=1e9, retry_s=1e9),
                Stores(self.job),
                ToyReplica(rule) if is_resident else None,
            )
            for name in "ab"
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
