"""All-reduce among simulated machines: groups that must meet, sums in place, and what goes wrong with them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agileml.application import Array
from agileml.core.protocol.commands import Broken, Form, Gather, Gathered, Introduce, Met, Reduce, Reduced

if TYPE_CHECKING:
    from tests.model.node_shell import SimulatedNode
    from tests.model.simulator import Simulation

LATE = 0.02  # share of sums that one machine has much later than the others: its link stalls


@dataclass
class Place:
    """One machine's end of a group. `asked` has what it gave; its arrays are spoilt from then on."""

    group: tuple[str, ...] = ()
    known: set[str] = field(default_factory=set)
    asked: list[tuple[Reduce | Gather, tuple[Array, ...]]] = field(default_factory=list)
    answered: int = 0
    last_s: float = 0.0
    is_stuck: bool = False
    is_abandoned: bool = False


class Groups:
    """The groups of a simulation. `given_up` counts sums that were under way when a machine left its group."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        s = simulation.schedule
        # A generator of its own: other draws stay as they are.
        self._late = random.Random(f"{s.seed}/{s.mode}/late")
        self._places: dict[tuple[int, str], Place] = {}
        self._present: dict[str, int] = {}  # the epoch of each machine's group
        self.given_up = 0

    def _place(self, epoch: int, node: str) -> Place:
        return self._places.setdefault((epoch, node), Place())

    def form(self, node: SimulatedNode, command: Form) -> None:
        self._present[node.name] = command.epoch
        place = self._place(command.epoch, node.name)
        place.group = command.group
        place.known.add(node.name)
        delay_s = self._simulation.rng.uniform(0.0, 0.02)
        self._simulation.node_shell.happen(node, delay_s, Met(command.epoch, node.name, b"here"))

    def introduce(self, node: SimulatedNode, command: Introduce) -> None:
        self._place(command.epoch, node.name).known.add(command.key)
        self._add_up(command.epoch)

    def abandon(self, node: SimulatedNode) -> None:
        place = self._place(self._present[node.name], node.name)
        self.given_up += len(place.asked) > place.answered
        place.is_abandoned = True

    def reduce(self, node: SimulatedNode, command: Reduce) -> None:
        place = self._place(command.epoch, node.name)
        place.asked.append((command, tuple(block.copy() for block in command.blocks)))
        for block in command.blocks:
            block.fill(float("nan"))
        if self._is_someone_gone(place) and self._simulation.rng.random() < 0.5:
            self._break(node, command.epoch)
        self._add_up(command.epoch)

    def gather(self, node: SimulatedNode, command: Gather) -> None:
        place = self._place(command.epoch, node.name)
        arrays = tuple(array for _, arrays in command.parts for array in arrays)
        place.asked.append((command, tuple(array.copy() for array in arrays)))
        for array in arrays:
            array.fill(float("nan"))
        self._add_up(command.epoch)

    def _is_someone_gone(self, place: Place) -> bool:
        return any(self._simulation.nodes[name].is_dead for name in place.group)

    def _break(self, node: SimulatedNode, epoch: int) -> None:
        self._place(epoch, node.name).is_stuck = True
        self._simulation.node_shell.happen(
            node, self._simulation.rng.uniform(0.0, 0.1), Broken(epoch, "closed by peer")
        )

    def _add_up(self, epoch: int) -> None:
        """Answer everybody who can be: all have met, and all have given the next sum's share."""
        simulation = self._simulation
        group = next((p.group for (e, _), p in self._places.items() if e == epoch and p.group), ())
        places = [self._place(epoch, name) for name in group]
        if not all(place.known >= set(group) and place.group for place in places):
            return
        for name, place in zip(group, places, strict=True):
            for at in range(place.answered, min(len(other.asked) for other in places)):
                place.answered += 1
                asked = {member: other.asked[at] for member, other in zip(group, places, strict=True)}
                node = simulation.nodes[name]
                until_s = max(
                    simulation.broken_links.until_s(group),
                    *(simulation.nodes[other].cut_until_s for other in group),
                )
                place.last_s = max(
                    place.last_s, until_s, simulation.now_s + simulation.rng.uniform(0.001, 0.03)
                )
                if not simulation.schedule.gentle and self._late.random() < LATE:
                    place.last_s += self._late.uniform(0.1, 1.0)
                seconds = place.last_s - simulation.now_s
                simulation.after(
                    seconds,
                    lambda node=node, place=place, asked=asked: self._answer(node, place, asked),
                )

    def _answer(self, node: SimulatedNode, place: Place, asked: Asked) -> None:
        simulation = self._simulation
        command = asked[node.name][0]
        keys = {(type(c), c.clock, c.partition if isinstance(c, Reduce) else -1) for c, _ in asked.values()}
        assert len(keys) == 1, asked
        if place.is_stuck:
            return
        if place.is_abandoned:
            if self._late.random() < 0.5:  # its thread was just about to report the sum
                simulation.node_shell.happen(node, self._late.uniform(0.0, 1.0), _answered(command, asked))
            return
        rough = not simulation.schedule.gentle
        if (self._is_someone_gone(place) and simulation.rng.random() < 0.5) or (
            rough and simulation.rng.random() < 0.002
        ):
            self._break(node, command.epoch)
            return
        simulation.node_shell.happen(node, 0.0, _answered(command, asked))


Asked = Mapping[str, tuple[Reduce | Gather, tuple[Array, ...]]]  # by machine


def _answered(command: Reduce | Gather, asked: Asked) -> Reduced | Gathered:
    if isinstance(command, Gather):
        return _gathered(command, asked)
    return _added_up([(c, blocks) for c, blocks in asked.values() if isinstance(c, Reduce)])


def _gathered(command: Gather, asked: Asked) -> Gathered:
    """Fill the arrays of a machine with what the machines that they are of have."""
    at = 0
    for name, arrays in command.parts:
        for array in arrays:
            array[:] = asked[name][1][at]
            at += 1
    return Gathered(command.epoch, command.clock)


def _added_up(asked: list[tuple[Reduce, tuple[Array, ...]]]) -> Reduced:
    command = asked[0][0]
    shares = [blocks for _, blocks in asked]
    sums = [share.copy() for share in shares[0]]
    for share in shares[1:]:
        for total, block in zip(sums, share, strict=True):
            total += block
    return Reduced(
        command.epoch,
        command.clock,
        command.partition,
        tuple(sums),
        sum(c.loss for c, _ in asked),
        sum(c.examples for c, _ in asked),
        any(c.pause for c, _ in asked),
        tuple(c.compute_s for c, _ in asked if c.compute_s is not None),
        tuple(c.expected for c, _ in asked if c.compute_s is not None),
    )
