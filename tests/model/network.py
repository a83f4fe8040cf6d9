"""The network between machines and controllers: it loses, doubles, delays and reorders messages."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from agileml.core.parameters.layout import Block, Dense, Sparse
from agileml.core.protocol.help_messages import HelpMessage
from agileml.core.protocol.inputs import Received
from agileml.core.protocol.messages import (
    CONTROLLER,
    Ack,
    Copy,
    HelpPush,
    Message,
    Params,
    Part,
    Push,
    Unreachable,
)
from agileml.core.protocol.pool_messages import DrawBundle

if TYPE_CHECKING:
    from tests.model.simulator import Simulation


def received(message: Message) -> Message:
    """A message as it comes out of a network: what a shard may add into is nobody else's."""
    if not isinstance(message, Push):
        return message
    blocks = tuple(own_block(block) for block in message.contribution.blocks)
    return replace(message, contribution=replace(message.contribution, blocks=blocks))


def own_block(block: Block | None) -> Block | None:
    """A copy, by hand: `deepcopy` took ten times as long, and there is one for each push."""
    match block:
        case Dense(values):
            return Dense(values.copy())
        case Sparse(rows, values):
            return Sparse(rows.copy(), values.copy())
    return None


class SimulatedNetwork:
    """Checks on the way that a partition has one server in an epoch, and that no answer is too old."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.help_messages: Counter[str] = Counter()
        self.cuts_until_s = 0.0  # until then some machine is cut off
        self._acceptors: dict[tuple[int, int], str] = {}  # who serves, by epoch and partition
        self._aside = random.Random(f"{sim.schedule.seed}/{sim.schedule.mode}/aside")
        self._last_s: dict[tuple[str, str], float] = {}  # when the last message of one to another arrives

    def send(self, sender: str, to: str, message: Message) -> None:
        self.sim.messages += 1
        if isinstance(message, HelpMessage):
            self.help_messages[type(message.body).__name__] += 1
        elif isinstance(message, HelpPush):
            self.help_messages["HelpPush"] += 1
        elif isinstance(message, DrawBundle):
            self.sim.fired["draw"] += 1
            self.sim.fired["draw again"] += bool(message.wants)  # what the view before had begun
        if isinstance(message, Ack | Params):
            acceptor = self._acceptors.setdefault((message.epoch, message.partition), sender)
            assert acceptor == sender, (
                f"two servers for partition {message.partition} in epoch {message.epoch}"
            )
        if isinstance(message, Params) and self.sim.job.consistency.slack is not None:
            slack = self.sim.job.consistency.slack
            assert message.version >= message.clock - slack, message
            assert slack or message.version == message.clock, message
        network = self.sim.schedule.network
        # What machines say of each other has draws of its own: others stay as they are.
        rng = self._aside if isinstance(message, Unreachable) else self.sim.rng
        copies = (rng.random() >= network.drop) + (rng.random() < network.double)
        for _ in range(copies):
            delay_s = rng.expovariate(1 / network.delay_s)
            if network.late and rng.random() < network.late:
                delay_s += rng.uniform(0.2, 2.5)
            delay_s += self.on_the_link(sender, message)
            at_s = self.sim.now_s + delay_s
            if self.sim.schedule.orderly:
                at_s = self._last_s[sender, to] = max(at_s, self._last_s.get((sender, to), 0.0))
            self.sim.at(at_s, lambda: self.deliver(sender, to, message))
        if self.sim.faults.aimed:
            self.sim.faults.aim(type(message).__name__)

    def on_the_link(self, sender: str, message: Message) -> float:
        """For how long a cut's part or a moved shard is on its sender's link, behind those before it."""
        rate = self.sim.schedule.bytes_per_s
        if rate is None or not isinstance(message, Part | Copy):
            return 0.0
        cut = message.cut if isinstance(message, Part) else message.copy.cut
        node = self.sim.nodes[sender]
        node.link_free_s = max(self.sim.now_s, node.link_free_s) + cut.size_bytes / rate
        return node.link_free_s - self.sim.now_s

    def deliver(self, sender: str, to: str, message: Message) -> None:
        if self.sim.now_s < self.cuts_until_s and self.is_cut(sender, to):
            return
        if self.sim.broken_links.is_down(sender, to):
            return
        if to == CONTROLLER:
            for controller in self.sim.controllers:
                self.sim.tell(controller, Received(sender, message))
        elif (node := self.sim.nodes.get(to)) is not None:
            message = received(message)
            self.sim.on(
                node, lambda: self.sim.node_shell.do(node, node.node.handle(sender, message, self.sim.now_s))
            )

    def is_cut(self, sender: str, to: str) -> bool:
        """True when no message gets through between these two."""
        return any((n := self.sim.nodes.get(end)) and self.sim.now_s < n.cut_until_s for end in (sender, to))
