"""Links that carry nothing, also in one direction alone, and machines that never answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from agileml.core.protocol.inputs import NodeLost, NodeSeen
from agileml.core.protocol.messages import CONTROLLER
from agileml.events.terms import Loss
from tests.model.node_shell import TICK_S, SimulatedNode

if TYPE_CHECKING:
    from tests.model.controller_shell import SimulatedController
    from tests.model.simulator import Simulation

NOTICED_S = 1.2  # until a transport counts a peer as lost
BACK_S = 1.0  # until it has connected again, at most


class BrokenLinks:
    """Which messages are lost, and what the controllers' transports say: they ping machines on links of their own."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self._until_s: dict[tuple[str, str], float] = {}  # by sender and receiver

    def part(self, first: str, second: str, seconds: float, *, one_way: bool) -> None:
        """Nothing gets from one machine to another, nor back unless `one_way`."""
        for ends in ((first, second), (second, first))[: 1 if one_way else 2]:
            self._until_s[ends] = max(self._until_s.get(ends, 0.0), self.sim.now_s + seconds)

    def until_s(self, nodes: Iterable[str]) -> float:
        """Until when some link among these machines is down."""
        there = set(nodes)
        return max((at_s for ends, at_s in self._until_s.items() if there.issuperset(ends)), default=0.0)

    def is_parted(self, node: str) -> bool:
        """True while some link between this machine and another is down, and a little longer."""
        return any(node in ends and self.sim.now_s < at_s + 3.0 for ends, at_s in self._until_s.items())

    def look(self, node: SimulatedNode) -> None:
        """The transport of a machine finds out who does not answer it, of those that are not known to be gone."""
        for other in self.sim.nodes.values():
            if other is node:
                continue
            if other.is_gone or self._answers(node, other):
                node.unanswered_s.pop(other.name, None)
                node.node.found(other.name)
            elif self.sim.now_s - node.unanswered_s.setdefault(other.name, self.sim.now_s) >= NOTICED_S:
                node.node.lost(other.name)

    def _answers(self, node: SimulatedNode, other: SimulatedNode) -> bool:
        now_s = self.sim.now_s
        is_there = not other.is_dead and (other.is_mute or now_s >= other.frozen_until_s)
        is_cut = now_s < max(node.cut_until_s, other.cut_until_s)
        return is_there and not is_cut and not self.is_down(node.name, other.name)

    def cut(self, sender: str, to: str, seconds: float) -> None:
        """Nothing gets from the one to the other, one of which is the controller."""
        self._until_s[sender, to] = self.sim.now_s + seconds
        if to == CONTROLLER:
            self.see(self.sim.nodes[sender], self._until_s[sender, to])
            return
        self.sim.after(NOTICED_S, lambda: self._lose(to, self.sim.controllers))
        self.sim.after(seconds + self.sim.rng.uniform(0.05, BACK_S), lambda: self._find(to))

    def is_down(self, sender: str, to: str) -> bool:
        """True when nothing gets from the one to the other."""
        if not self._until_s:
            return False
        ends = sender if sender in self.sim.nodes else CONTROLLER, to
        return self.sim.now_s < self._until_s.get(ends, 0.0)

    def deaf_until_s(self, node: str) -> float:
        """Until when the controller's messages do not reach a machine."""
        return self._until_s.get((CONTROLLER, node), 0.0)

    def introduce(self, controller: SimulatedController) -> None:
        """A new controller's transport finds that it cannot connect."""
        for sender, node in self._until_s:
            if sender == CONTROLLER:
                self.sim.after(NOTICED_S, lambda node=node: self._lose(node, [controller]))

    def see(self, node: SimulatedNode, until_s: float) -> None:
        """The transport of a machine answers pings, whatever else does not work."""
        if node.is_dead or self.sim.is_over or self.sim.now_s >= until_s:
            return
        if node.is_mute or self.sim.now_s >= node.frozen_until_s:
            for controller in self.sim.controllers:
                self.sim.tell(controller, NodeSeen(node.name))
        self.sim.after(TICK_S, lambda: self.see(node, until_s))

    def _lose(self, node: str, controllers: list[SimulatedController]) -> None:
        if self.is_down(CONTROLLER, node):
            for controller in controllers:
                self.sim.tell(controller, NodeLost(node, Loss.DISCONNECTED))

    def _find(self, node: str) -> None:
        if not self.is_down(CONTROLLER, node) and not self.sim.nodes[node].is_dead:
            for controller in self.sim.controllers:
                self.sim.tell(controller, NodeSeen(node))
