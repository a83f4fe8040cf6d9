"""The worker of a stage in a pipeline without a flush: as soon as it has a version of its layers, it asks for the steps
that read it.

A step is the forward of one clock and the backward of an earlier one (`core.async_stages.walk`), so several clocks are
in flight. The machine owns its layers: it pulls from itself and pushes to itself, and one push makes the next version.
"""

from __future__ import annotations

from collections.abc import Callable

from agileml.core.async_stages.versions import lag_of, steps_over, version_of
from agileml.core.compute.cursor import Cursor
from agileml.core.node.reading import Blocks
from agileml.core.node.time_spent import Doing
from agileml.core.node.worker import Worker
from agileml.core.protocol.commands import Begun, Compute, Computed, NodeCommand
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Ack, Behind, Message, Params, Pull, Push
from agileml.core.protocol.view import View


class AsyncStageWorker(Worker):
    """Its clock is the version of its layers that it has."""

    def __init__(
        self, me: str, job: Job, send: Callable[[str, Message], None], ask: Callable[[NodeCommand], None]
    ) -> None:
        super().__init__(me, job, send, ask)
        assert job.pipeline is not None
        self._rules = job.pipeline
        self._lag = 0  # steps from a clock's forward to its backward
        self._next = 0  # the step to ask for
        self.end = job.clocks  # clocks that the first stage begins
        self._parts: dict[int, Blocks] = {}  # of the version that comes
        self._orders: dict[int, Compute] = {}  # steps that are not over

    @property
    def doing(self) -> Doing:
        """The present activity of the worker."""
        if self._orders:
            return Doing.COMPUTE
        return Doing.PULL if self._mine else Doing.IDLE

    def adopt(self, view: View) -> None:
        """Go on under a new view, from its base clock: nothing is in flight."""
        for order in self._orders.values():
            order.cursor.abort()
        self._orders.clear()
        self._view = view
        self.clock = self._next = view.base
        self.end = self.job.clocks
        here = view.stage_at.get(self.me)
        self._mine = ()
        if here is not None:
            self._mine = tuple(range(here.first, here.stop))
            self._lag = lag_of(self._rules.mode, len(view.pipeline) - 1 - view.pipeline.index(here))
            self._pull_version(view.base)

    def end_here(self) -> int:
        """Begin no other clock at this stage, the first: returns the one that is not begun."""
        self.end = min(self.end, self._next)
        return self.end

    def _pull_version(self, version: int) -> None:
        assert self._view is not None
        self._parts = {}
        if version < self.job.clocks:
            for partition in self._mine:
                rows = (None,) * len(self.job.layout.tables)
                self._send(self.me, Pull(self._view.epoch, partition, version, rows))

    def params(self, message: Params) -> None:
        """Take the blocks of one partition; with the last one ask for the steps that read this version."""
        assert message.version == message.clock, f"a stage is past version {message.clock}: {message.version}"
        assert self._view is not None
        self._parts[message.partition] = message.blocks
        if len(self._parts) < len(self._mine):
            return
        self.clock = message.version
        parts = tuple(self._parts.get(p, ()) for p in range(self.job.layout.partitions))
        bundles = (self.job.all_units,)
        while version_of(self._next, self._view.base, self._lag) == self.clock:
            cursor, begins = Cursor(self.job.units), self._next < self.end
            order = Compute(self._view.epoch, self._next, bundles, parts, cursor, begins=begins)
            self._orders[self._next] = order
            self._ask(order)
            self._next += 1

    def computed(self, event: Computed) -> None:
        """Push the sums of a clock to this machine's partitions, and pull the version that they make."""
        if self._view is None or event.timeline != self._view.epoch:
            return
        over = steps_over(self._rules.mode, event.clock, self._lag)
        self._orders = {clock: order for clock, order in self._orders.items() if clock > over}
        for partition, contribution in event.contributions:
            self._send(self.me, Push(event.timeline, partition, event.clock, event.bundle, contribution))
        self._pull_version(event.clock + 1)

    def begun(self, event: Begun) -> None:
        raise AssertionError(f"a stage reads its layers whole: {event}")

    def ack(self, message: Ack) -> None:
        """Do nothing: a push of this machine is counted on it."""

    def behind(self, message: Behind) -> None:
        raise AssertionError(f"only this machine makes versions of its layers: {message}")

    def go_on(self) -> None:
        """Do nothing: steps follow versions."""

    def resend(self) -> None:
        """Do nothing: a message of a machine to itself is not lost."""
