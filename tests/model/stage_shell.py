"""The compute thread of a pipeline's stage in a simulation: the engine's own walk, with times that are drawn."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

from agileml.core.async_stages.walkers import stage_walker
from agileml.core.protocol.commands import Arrange, Compute, Computed, Crossed, PassOn
from agileml.core.stage.walk import Awaited, Crossings, Walk
from tests.model.staged_toy import StagedToy

if TYPE_CHECKING:
    from tests.model.node_shell import SimulatedNode
    from tests.model.simulator import Simulation

ACTION_S = 0.004


class SimulatedStage:
    """The computations of one machine, one after the other; what it has for others takes a moment each."""

    def __init__(self, sim: Simulation, node: SimulatedNode) -> None:
        toy = sim.toy
        assert isinstance(toy, StagedToy) and sim.job.pipeline is not None
        self._sim, self._node = sim, node
        plan = toy.plan(sim.job.layout.partitions)
        self._walker = stage_walker(node.name, toy, plan, node.work, sim.job.pipeline)
        self._crossings = Crossings()
        self._waiting: deque[Compute] = deque()
        self._walk: tuple[Compute, Walk] | None = None
        self._awaited: Awaited | None = None
        self._is_busy = False
        self._has_begun = False  # something of this walk is computed
        self.given_up = 0  # walks that were aborted after that
        # A generator of its own, so that other draws stay as they are.
        self._rng = random.Random(f"{sim.schedule.seed}/{sim.schedule.mode}/{node.name}/stage")

    def ask(self, command: Compute | Arrange | PassOn) -> None:
        """Queue a computation, or take what one may wait for."""
        match command:
            case Compute():
                self._waiting.append(command)
            case Arrange():
                self._crossings.arrange(command)
            case PassOn():
                self._crossings.deliver(command.crossing)
        self._go_on()

    def _go_on(self) -> None:
        """Take the actions that are possible now."""
        while not self._is_busy and self._next_walk():
            assert self._walk is not None
            order, walk = self._walk
            answer = None
            if self._awaited is not None:
                answer = self._crossings.get(self._awaited)
                if answer is None and not order.cursor.is_aborted:
                    return
                if order.cursor.is_aborted:
                    self.given_up += self._has_begun
                    self._walk = self._awaited = None
                    continue
            self._awaited = None
            try:
                step = walk.send(answer)
            except StopIteration as end:
                if end.value is not None:
                    self._crossings.forget(order.timeline, end.value)
                self.given_up += order.cursor.is_aborted
                self._walk = None
                continue
            if isinstance(step, Awaited):
                self._awaited = step
            else:
                self._report(step)

    def _next_walk(self) -> bool:
        """True when a computation has begun, or can begin."""
        while self._walk is None and self._waiting:
            order, stages = self._waiting[0], self._crossings.stages
            if not order.cursor.is_aborted and (stages is None or stages.epoch < order.timeline):
                return False
            self._waiting.popleft()
            if order.cursor.is_aborted or stages is None or stages.epoch > order.timeline:
                continue
            if self._sim.node_shell.fails(self._node, order):
                return False
            parts = order.parts

            def blocks(partition: int, parts=parts):  # type: ignore[no-untyped-def]
                found = parts[partition]
                assert found is not None, partition
                return found

            self._has_begun = False
            self._walk = order, self._walker.walk(order, stages, blocks, lambda: self._sim.now_s)
        return self._walk is not None

    def _report(self, step: Crossed | Computed) -> None:
        """Nothing else is done until it is there."""
        slow = 10 if self._sim.now_s < self._node.slow_until_s else 1
        seconds = self._rng.uniform(0.2, 1.8) * ACTION_S * slow
        if isinstance(step, Computed):  # gradients of weights that were put off
            seconds *= self._rng.choice([1, 30])
        self._is_busy = self._has_begun = True

        def done() -> None:
            self._is_busy = False
            self._sim.node_shell.do(self._node, self._node.node.happened(step, self._sim.now_s))
            self._go_on()

        self._sim.after(seconds, lambda: self._sim.on(self._node, done))
