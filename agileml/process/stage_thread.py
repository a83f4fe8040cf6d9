"""The compute thread of a pipeline's stage: drives its walk through a clock, and waits for messages of neighbours.

A computation ends early when the worker aborts it, because a membership change began the clock again for all stages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from agileml.core.compute.cursor import Cursor
from agileml.core.compute.pace import Pace
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.protocol.commands import (
    Abort,
    Arrange,
    Begin,
    Compute,
    Computed,
    Deliver,
    LoadSlices,
    NodeEvent,
    PassOn,
)
from agileml.core.protocol.messages import Crossing, Failure
from agileml.core.stage.walk import Awaited, Crossings, StageWalker
from agileml.process.compute import Aborted, ComputeThread, Delivery
from agileml.process.user_failures import ComputeJob


class Mailbox:
    """The messages of neighbouring stages. One thread delivers, another waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._crossings = Crossings()
        self._is_closed = False

    def close(self) -> None:
        """End every wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def wake(self) -> None:
        """Have a wait check again whether its computation has been aborted."""
        with self._changed:
            self._changed.notify()

    def arrange(self, command: Arrange) -> None:
        """Learn the stages of an epoch, and drop the messages of older epochs."""
        with self._changed:
            self._crossings.arrange(command)
            self._changed.notify()

    def deliver(self, crossing: Crossing) -> None:
        """Keep a neighbour's message, which may come twice."""
        with self._changed:
            self._crossings.deliver(crossing)
            self._changed.notify()

    def stages(self, epoch: int, cursor: Cursor) -> Arrange:
        """The stages of an epoch, when they are known. Raises Aborted."""
        with self._changed:
            self._changed.wait_for(lambda: self._ends(cursor) or self._epoch() >= epoch)
            stages = self._crossings.stages
            if self._ends(cursor) or stages is None or stages.epoch != epoch:
                raise Aborted
            return stages

    def _epoch(self) -> int:
        return self._crossings.stages.epoch if self._crossings.stages is not None else -1

    def take(self, at: Awaited, cursor: Cursor) -> Crossing:
        """Wait for a neighbour's message. Raises Aborted."""
        with self._changed:
            self._changed.wait_for(lambda: self._ends(cursor) or self._crossings.get(at) is not None)
            found = self._crossings.get(at)
            if self._ends(cursor) or found is None:
                raise Aborted
            return found

    def _ends(self, cursor: Cursor) -> bool:
        return cursor.is_aborted or self._is_closed

    def forget(self, epoch: int, clock: int) -> None:
        """Drop the messages of a clock that is computed here, also those that come again."""
        with self._changed:
            self._crossings.forget(epoch, clock)


class StageThread(ComputeThread):
    """Carries out a stage's computations, along the way of `walker`."""

    def __init__(
        self,
        walker: StageWalker,
        work: UnitComputer,
        report: Callable[[NodeEvent | Failure], None],
        load_kernels: Callable[[], None],
        pace: Pace | None = None,
    ) -> None:
        self._mailbox = Mailbox()
        self._walker = walker

        def load() -> None:
            load_kernels()
            work.application.stages()  # recording the layers takes seconds

        super().__init__(work, report, load, pace)

    def stop(self) -> None:
        self._mailbox.close()
        super().stop()

    def ask(self, job: ComputeJob | Deliver | Abort | Arrange | PassOn) -> None:
        """Queue a job, or deliver a message that a computation may be waiting for."""
        match job:
            case Arrange():
                self._mailbox.arrange(job)
            case PassOn():
                self._mailbox.deliver(job.crossing)
            case Abort():
                super().ask(job)
                self._mailbox.wake()
            case _:
                super().ask(job)

    def _do(self, job: ComputeJob, delivery: Delivery | None) -> None:
        match job:
            case Compute():
                assert delivery is not None
                with suppress(Aborted):
                    self._walk(job, delivery)
                self._over(job)
            case LoadSlices() | Begin():
                super()._do(job, delivery)

    def _walk(self, job: Compute, delivery: Delivery) -> None:
        stages = self._mailbox.stages(job.timeline, job.cursor)
        walk = self._walker.walk(job, stages, delivery.take, time.monotonic)
        answer: Crossing | None = None
        waited_s = 0.0  # for neighbours, since the last sums of this walk
        while True:
            began_s = time.monotonic()
            try:
                step = walk.send(answer)
            except StopIteration as end:
                if end.value is not None:
                    self._mailbox.forget(job.timeline, end.value)
                return
            paused_s = self._keep_pace(0, began_s)
            answer = None
            if isinstance(step, Awaited):
                since_s = time.monotonic()
                answer = self._mailbox.take(step, job.cursor)
                waited_s += time.monotonic() - since_s
            elif isinstance(step, Computed):
                # The walk measured its earlier pauses itself, but this one came after the result.
                compute_s = max(0.0, step.compute_s - waited_s) + paused_s
                self._report(replace(step, compute_s=compute_s, waited_s=waited_s))
                waited_s = 0.0
            else:
                self._report(step)
