"""The worker of a stage in a pipeline without a flush: as soon as it has a version of its layers, it asks for the steps
that read it.

A step is the forward of one clock and the backward of an earlier one (`core.async_stages.walk`), so several clocks are
in flight. The sums of a clock of all the stage's machines make the next version, which each of them pulls. No machine
gets a version ahead of another, whose sums it would lack. A step that does not need the version on its way may end
before it: then its sums wait until that version is here.
"""

from __future__ import annotations

from agileml.core.async_stages.versions import lag_of, steps_over, version_of
from agileml.core.compute.cursor import Cursor
from agileml.core.node.reading import Blocks
from agileml.core.node.time_spent import Doing
from agileml.core.node.worker import Worker
from agileml.core.protocol.commands import Begun, Compute, Computed
from agileml.core.protocol.deal import bundles_of
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.messages import Ack, Behind, LastParams, Params, Pull, Push
from agileml.core.protocol.view import View
from straggler.coverage import Units


class AsyncStageWorker(Worker):
    """Its clock is the version of its layers that it has."""

    def __init__(self, io: NodeIo) -> None:
        super().__init__(io)
        assert io.job.pipeline is not None
        self._rules = io.job.pipeline
        self.lag = 0  # clocks that the newest version lacks in a step
        self._behind = 0  # stages
        self._next = 0  # the step to ask for
        self._end = io.job.clocks  # clocks that the first stage begins
        self._own: tuple[Units, ...] = ()  # this machine's bundles of every clock
        self._wanted: int | None = None  # the version that comes
        self._parts: dict[int, Blocks] = {}  # of it
        self._orders: dict[int, Compute] = {}  # steps that are not over
        self._held: list[Computed] = []  # while a version comes
        self._summed = 0  # bundles of the clock whose backwards are under way
        self._unanswered: dict[tuple[int, int, Units], Push] = {}

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
        self._held.clear()
        self._unanswered.clear()
        self._view, self._wanted, self._summed = view, None, 0
        self.clock = self._next = view.base
        self._end = self.job.clocks
        here = view.stage_at.get(self.me)
        self._mine = ()
        if here is not None:
            self._mine = tuple(range(here.first, here.stop))
            self._own = bundles_of(self.job, dict(here.replicas)[self.me])
            number = view.pipeline.index(here)
            self.lag = lag_of(self._rules.mode, view.pipeline, number)
            self._behind = len(view.pipeline) - 1 - number
            self._pull_version(view.base)

    def _pull_version(self, version: int) -> None:
        self._parts = {}
        self._wanted = version if version < self.job.clocks else None
        self._pull_missing()

    def _pull_missing(self) -> None:
        for partition in self._mine:
            if self._wanted is not None and partition not in self._parts:
                rows = (None,) * len(self.job.layout.tables)
                pull = Pull(self._view_now.epoch, partition, self._wanted, rows)
                self._send(self._server_of(partition), pull)

    def params(self, message: Params) -> None:
        """Take the blocks of one partition; with the last one ask for the steps that read this version."""
        if message.clock != self._wanted or message.partition in self._parts:
            return  # it came before
        assert message.version == message.clock, f"a stage is past version {message.clock}: {message.version}"
        if isinstance(message, LastParams):
            self._end = min(self._end, message.end)
        self._parts[message.partition] = message.blocks
        if len(self._parts) < len(self._mine):
            return
        self.clock, self._wanted = message.version, None
        parts = tuple(self._parts.get(p, ()) for p in range(self.job.layout.partitions))
        while version_of(self._next, self._view_now.base, self.lag) == self.clock:
            cursor, begins = Cursor(self.job.units), self._next < self._end
            order = Compute(self._view_now.epoch, self._next, self._own, parts, cursor, begins=begins)
            self._orders[self._next] = order
            self._ask(order)
            self._next += 1
        held, self._held = self._held, []
        for event in held:
            self.computed(event)

    def computed(self, event: Computed) -> None:
        """Push the sums of a bundle; with the last one of its clock pull the version that the clock makes.

        While the version before that one comes they wait: with them it could be over before this machine has it.
        """
        if self._view is None or event.timeline != self._view.epoch:
            return
        if self._wanted is not None:
            self._held.append(event)
            return
        for partition, contribution in event.contributions:
            push = Push(event.timeline, partition, event.clock, event.bundle, contribution)
            self._unanswered[partition, event.clock, event.bundle] = push
            self._send(self._server_of(partition), push)
        self._summed += 1
        if self._summed == len(self._own):
            self._summed = 0
            over = steps_over(self._rules.mode, event.clock, self._behind)
            self._orders = {clock: order for clock, order in self._orders.items() if clock > over}
            self._pull_version(event.clock + 1)

    def begun(self, event: Begun) -> None:
        raise AssertionError(f"a stage reads its layers whole: {event}")

    def ack(self, message: Ack) -> None:
        """Stop sending the sums of a bundle: the partition has them."""
        self._unanswered.pop((message.partition, message.clock, message.bundle), None)

    def behind(self, message: Behind) -> None:
        """Do nothing: it answers a pull that was late, or doubled. The version that is pulled now lacks this machine's
        sums."""
        assert message.clock != self._wanted, message

    def go_on(self) -> None:
        """Do nothing: steps follow versions."""

    def resend(self) -> None:
        """Repeat every unanswered pull and push."""
        if self._view is None:
            return
        self._pull_missing()
        for push in self._unanswered.values():
            self._send(self._server_of(push.partition), push)
