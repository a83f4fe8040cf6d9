"""The owner of partition 0: it tells every worker that waits once, and the log all its steps."""

from __future__ import annotations

from agileml.core.controller.step_log import StepLog
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.messages import Fetch, Message, Prepare, Role, Source, SourceKind
from agileml.core.protocol.superstep_messages import NextSuperstep, StepsTaken, StepTaken, SuperstepFixed
from agileml.core.protocol.view import INITIAL, View
from agileml.core.supersteps.server import MOST_TOLD, SuperstepServer
from agileml.core.supersteps.shard import MinibatchShard
from tests.agileml.core.fixtures import make_job
from tests.agileml.core.node.small_cluster import Stores


class Owner:
    """A server that owns the one partition of a job with so many workers, a minibatch of each clock for each."""

    def __init__(self, workers: int) -> None:
        job = make_job("elastic", slices=workers, partitions=1)
        self.workers = tuple(f"w{number}" for number in range(workers))
        self.sent: list[tuple[str, Message]] = []
        io = NodeIo("w0", job, lambda to, message: self.sent.append((to, message)), lambda command: None)
        self.server = SuperstepServer(io, Stores(job))
        self.server.prepare(Prepare(1, 0, INITIAL))
        self.server.fetch(Fetch(1, 0, Role.OWNER, INITIAL, Source(SourceKind.INITIAL, "")), 0)
        share = tuple((worker, 1 << number) for number, worker in enumerate(self.workers))
        nobody = ("",) * workers
        self.server.adopt(View(1, 1, self.workers, ("w0",), ("w1",), share, nobody, 0, (), 1, INITIAL), 0.0)
        self.sent.clear()

    def ask(self, first: int) -> None:
        for worker in self.workers:
            self.server.next_superstep(worker, NextSuperstep(1, first), 0.0)

    def take_steps(self, count: int) -> None:
        shard = self.server.served(0, 1)
        assert isinstance(shard, MinibatchShard)
        for position in range(count):
            shard.kept.add(StepTaken(position, (position,)))

    def told(self) -> list[tuple[str, int]]:
        """Who was told of a superstep since the last call, and where it begins."""
        found = [(to, m.plan.first) for to, m in self.sent if isinstance(m, SuperstepFixed)]
        self.sent.clear()
        return sorted(found)


def test_all_who_wait_are_told_once_however_many_they_are() -> None:
    owner = Owner(512)
    owner.ask(0)
    assert owner.told() == [], "no clock may start yet"
    owner.server.raise_limit(10, 0.0)
    assert owner.told() == sorted((worker, 0) for worker in owner.workers)
    owner.ask(512)  # the last one fixes the superstep for all
    assert owner.told() == sorted((worker, 512) for worker in owner.workers)


def test_steps_do_not_wait_for_a_heartbeat_each_message() -> None:
    """Heartbeats may be seconds apart, and steps some milliseconds."""
    owner, log, logged = Owner(2), StepLog(), 0
    owner.take_steps(9 * MOST_TOLD + 1)
    owner.sent.extend(
        ("controller", report) for report in [*owner.server.reports(1), *owner.server.reports(1)]
    )
    messages = 0
    while owner.sent:
        message = owner.sent.pop(0)[1]
        assert isinstance(message, StepsTaken)
        messages += 1
        event = log.add(message, timeline=1)
        logged += len(event.positions) if event is not None else 0
        owner.server.steps_received(log.acknowledgement(message))
    assert logged == 9 * MOST_TOLD, "the last one comes with the next heartbeat"
    assert messages == 9 + 1, "the second of two heartbeats begins no other row of messages"
