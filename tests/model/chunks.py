"""A machine's compute thread where machines help each other: chunk by chunk, each bundle reported when it is done."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agileml.core.compute.cursor import Cursor
from agileml.core.compute.unit_computer import Inputs
from agileml.core.protocol.commands import Compute, Computed, MarkPassed

if TYPE_CHECKING:
    from tests.model.node_shell import SimulatedNode
    from tests.model.simulator import Simulation

UNIT_S = 0.02
REPORT_S = 0.001


@dataclass
class Work:
    """A computation under way: the bundle that it is at, and how many units of that are done."""

    order: Compute
    inputs: Inputs
    index: int = 0
    done: int = 0
    delay_s: float = 0.0  # of each unit, beyond what it takes


class ChunkedThread:
    """The computations of one machine, one at a time; help comes before the rest of what has begun."""

    def __init__(self, sim: Simulation, node: SimulatedNode) -> None:
        self._sim = sim
        self._node = node
        self._waiting: deque[Work] = deque()
        self._help: deque[Work] = deque()
        self._stack: list[Work] = []
        # A generator of its own, so that other draws stay as they are.
        self._rng = random.Random(f"{sim.schedule.seed}/{sim.schedule.mode}/{node.name}/chunks")

    def ask(self, order: Compute, inputs: Inputs) -> None:
        work = Work(order, inputs, delay_s=self._rng.choice([0.0, 0.0, 0.0, 8 * UNIT_S]))
        (self._help if order.is_help else self._waiting).append(work)
        if not self._stack:
            self._next()

    def _next(self) -> None:
        """Go on with what comes first: help, what was interrupted for it, what waits."""
        if self._help and not (self._stack and self._stack[-1].order.is_help):
            self._stack.append(self._help.popleft())
        elif not self._stack and self._waiting:
            self._stack.append(self._waiting.popleft())
        if self._stack:
            self._step(self._stack[-1])

    def _step(self, work: Work) -> None:
        order, cursor = work.order, work.order.cursor
        left = order.bundles[work.index].bit_count() - work.done
        if cursor.is_aborted or not (count := cursor.claim(left)):
            if work.done and not cursor.is_aborted:
                self._report(work)
            self._stack.remove(work)
            self._next()
            return
        slow = 10 if self._sim.now_s < self._node.slow_until_s else 1
        seconds = count * (self._rng.uniform(0.5, 1.5) * UNIT_S + work.delay_s) * slow
        self._sim.after(seconds, lambda: self._sim.on(self._node, lambda: self._computed(work, count)))

    def _computed(self, work: Work, count: int) -> None:
        order = work.order
        work.done += count
        if order.cursor.passes():
            self._sim.node_shell.happen(self._node, REPORT_S, MarkPassed(order.timeline, order.clock))
        if work.done == order.bundles[work.index].bit_count():
            self._report(work)
            work.index, work.done = work.index + 1, 0
            if work.index == len(order.bundles):
                self._stack.remove(work)
        self._next()

    def _report(self, work: Work) -> None:
        """Compute what was claimed of a bundle, and report it."""
        order, bundle = work.order, work.order.bundles[work.index]
        part = Cursor(bundle.bit_count())
        with part.held():
            part.end_at(work.done)
        for units, total in self._node.work.sums(work.inputs, bundle, part):
            parts = tuple(enumerate(self._node.work.split(total)))
            self._sim.node_shell.happen(
                self._node, REPORT_S, Computed(order.timeline, order.clock, units, parts, 0.01)
            )
