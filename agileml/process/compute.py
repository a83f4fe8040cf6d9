"""The compute thread of a machine: loads items and runs the user's code, so that the server thread never waits."""

from __future__ import annotations

import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from agileml.application import Array
from agileml.config.hardware import ItemsAhead
from agileml.core.compute.pace import Pace
from agileml.core.compute.threads import limited_threads
from agileml.core.compute.unit_computer import Inputs, UnitComputer
from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.commands import (
    Abort,
    Arrange,
    Begin,
    Begun,
    Compute,
    Computed,
    Deliver,
    Loaded,
    LoadSlices,
    MarkPassed,
    NodeEvent,
    PassOn,
)
from agileml.core.protocol.messages import Failure
from agileml.process.steady_clock import wall_s
from agileml.process.user_failures import ComputeJob, failure_while, problem_of, warm_up
from straggler.coverage import Units, members

Blocks = tuple[Array, ...]


class Aborted(BaseException):
    """A computation waits for blocks that will not come. Not an Exception, so that user code does not catch it."""


class Delivery:
    """The blocks of a computation by partition. One thread delivers or aborts, another one takes."""

    def __init__(self, parts: Sequence[Blocks | None]) -> None:
        self._parts = list(parts)
        self._missing = sum(blocks is None for blocks in parts)
        self._changed = threading.Condition()
        self._waited_s = 0.0
        # When each partition was first needed, and the seconds of waiting until then.
        self._needed: dict[int, tuple[float, float]] = {}
        self._all_waited_s = 0.0
        self.is_aborted = False

    @property
    def is_whole(self) -> bool:
        """True when every partition is here."""
        return not self._missing

    def deliver(self, partition: int, blocks: Blocks) -> None:
        """Add the blocks of a partition."""
        with self._changed:
            assert self._parts[partition] is None, partition
            self._parts[partition] = blocks
            self._missing -= 1
            self._changed.notify()

    def abort(self) -> None:
        """Have every `take` of missing blocks raise Aborted from now on."""
        with self._changed:
            self.is_aborted = True
            self._changed.notify()

    def take(self, partition: int) -> Blocks:
        """The blocks of a partition, which are needed now, when they are here. Raises Aborted."""
        self._needed.setdefault(partition, (time.monotonic(), self._all_waited_s))
        return self._wait_for(partition)

    def _wait_for(self, partition: int) -> Blocks:
        blocks = self._parts[partition]
        if blocks is not None:
            return blocks
        since_s = time.monotonic()
        with self._changed:
            while (blocks := self._parts[partition]) is None:
                if self.is_aborted:
                    raise Aborted
                self._changed.wait()
        waited_s = time.monotonic() - since_s
        self._waited_s += waited_s
        self._all_waited_s += waited_s
        return blocks

    def all(self) -> list[Blocks]:
        """The blocks of every partition, when they are here. Raises Aborted."""
        return [self._wait_for(partition) for partition in range(len(self._parts))]

    def needed_s(self) -> tuple[float, ...]:
        """The seconds of computing until each partition was first needed, once; empty if none was waited for.
        Partitions that were never needed count as needed last."""
        if not self._needed:
            return ()
        began_s = next(iter(self._needed.values()))[0]
        seconds = {p: at_s - waited_s - began_s for p, (at_s, waited_s) in self._needed.items()}
        last_s = max(seconds.values())
        self._needed = {}
        return tuple(seconds.get(partition, last_s) for partition in range(len(self._parts)))

    def settled(self) -> float:
        """Wait for all blocks, because a push says that its worker has read the clock everywhere. Returns the seconds
        of waiting since the last call. Raises Aborted."""
        if not self.is_whole:
            self.all()
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s


_Asked = tuple[ComputeJob, Delivery | None]


class ComputeJobs(ABC):
    """Takes jobs in one thread and carries them out, in order, in another."""

    def __init__(self, buffers: int = 1) -> None:
        """`buffers`: how many buffers for parameters the clocks use in turn."""
        self._jobs: queue.SimpleQueue[_Asked | Callable[[], object] | None] = queue.SimpleQueue()
        self._help: queue.SimpleQueue[Begin | Compute] = queue.SimpleQueue()
        # By buffer, how many computations were asked for, and how many are done.
        self._asked, self._done = [0] * buffers, [0] * buffers
        self._delivery = Delivery(())  # of the newest computation
        self._doing: ComputeJob | None = None
        # Called after each job with its start and end, for a profile.
        self.on_done: Callable[[ComputeJob, float, float], None] | None = None

    def ask(self, job: ComputeJob | Deliver | Abort | Arrange | PassOn) -> None:
        """Queue a job, deliver blocks to the last computation, or give it up. Help comes before all other jobs, also
        before the rest of one that has begun."""
        match job:
            case Arrange() | PassOn():
                raise AssertionError(job)  # only the stages of a pipeline need these
            case Deliver():
                self._delivery.deliver(job.partition, job.blocks)
            case Abort():
                self._delivery.abort()
            case Compute(is_help=True) | Begin(is_help=True):
                self._help.put(job)
                self._jobs.put(self._give_help)
            case Compute():
                self._asked[job.clock % len(self._asked)] += 1
                self._delivery = Delivery(job.parts)
                self._jobs.put((job, self._delivery))
            case _:
                self._jobs.put((job, None))

    def _give_help(self) -> float:
        """Do the queued jobs of helping; return the seconds that they took."""
        if self._help.empty():
            return 0.0
        began_s = time.monotonic()
        while not self._help.empty():
            doing, job = self._doing, self._help.get()
            self._doing = job
            self._do(job, Delivery(job.parts) if isinstance(job, Compute) else None)
            self._doing = doing
        return time.monotonic() - began_s

    def is_at_work(self, clock: int) -> bool:
        """True while a queued computation, help apart, may still read from the buffer of a clock. Only the thread that
        calls `ask` may use it."""
        turn = clock % len(self._asked)
        return self._asked[turn] != self._done[turn]

    def _over(self, job: Compute) -> None:
        """Record that a computation does not read its inputs any more."""
        if not job.cursor.is_over:
            job.cursor.is_over = True
            self._done[job.clock % len(self._done)] += not job.is_help

    @abstractmethod
    def _do(self, job: ComputeJob, delivery: Delivery | None) -> None:
        """Carry out a job and report its result. `delivery`: the blocks of a computation. Raises Aborted."""

    def _next(self) -> bool:
        """Do the next job, or call the queued function; False at the end.

        Separate from the loop, so that the job's arrays are freed before the next wait.
        """
        asked = self._jobs.get()
        if callable(asked):
            asked()
        elif asked is not None:
            job, delivery = asked
            started_s = wall_s() if self.on_done is not None else 0.0
            self._doing = job
            try:
                self._do(job, delivery)
            except BaseException:  # user code may fail in any way while its computation is aborted
                if delivery is None or not delivery.is_aborted:
                    raise
                assert isinstance(job, Compute), job
                self._over(job)
            self._doing = None
            if self.on_done is not None:
                self.on_done(job, started_s, wall_s())
        return asked is not None


def load_ahead(
    ahead: ItemsAhead,
    load: Callable[[], None],
    job: LoadSlices,
    report: Callable[[NodeEvent | Failure], None],
) -> str | None:
    """Load the slices of a job. Returns why later slices do not fit, if the run can do without them; otherwise reports
    a failure."""
    if job.ahead is None:
        load()
        return None
    problem = ahead.measured(load, job.ahead)
    if problem is None or not job.is_needed:
        return problem
    report(Failure(problem, ""))
    return None


class ComputeThread(ComputeJobs):
    """Carries out the jobs of a node in order and reports the results.

    The compute thread calls `report`. When user code fails, it reports a Failure and nothing after it.
    """

    def __init__(
        self,
        work: UnitComputer,
        report: Callable[[NodeEvent | Failure], None],
        load_kernels: Callable[[], None],
        pace: Pace | None = None,
        threads: int = 0,
    ) -> None:
        """The compute thread calls `load_kernels` before the first job. `pace` None: as fast as it can.

        `threads`: of BLAS and its like, 0 for as many as they choose; a deterministic job has one.
        """
        super().__init__(work.buffers)
        self._work = work
        self._report = report
        self._load_kernels = load_kernels
        self.pace = pace or Pace()
        self._threads = 1 if work.deterministic else threads
        self._ahead = ItemsAhead(lambda: [os.getpid()])
        self._own_speed = self.pace.speed
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def slow_down(self, factor: float, seconds: float) -> None:
        """A planned fault: for `seconds` from now on, every unit takes `factor` times as long."""
        self.pace.slow_down(factor, time.monotonic() + seconds)

    def change_speed(self, speed: float) -> None:
        """Compute at `speed` times the initial speed from now on."""
        self.pace.speed = speed * self._own_speed

    def schedstats(self) -> list[Path]:
        """Where the kernel says how long the compute thread ran and waited for a core."""
        return [Path(f"/proc/self/task/{self._thread.native_id}/schedstat")]

    def stop(self) -> None:
        """End the thread once it is idle, without waiting for the unit in progress."""
        self._delivery.abort()
        self._jobs.put(None)

    def _run(self) -> None:
        with limited_threads(self._threads) if self._threads else nullcontext():
            try:
                self._load_kernels()
                if self._threads > 1:
                    self._work.application.use_threads(self._threads)
                warm_up(self._work.application)
                while self._next():
                    pass
            except BaseException as error:  # also SystemExit: this thread must not end unreported
                self._report(failure_while(self._doing, *problem_of(error)))

    def _do(self, job: ComputeJob, delivery: Delivery | None) -> None:
        match job:
            case LoadSlices():
                too_large = self._load(job)
                self._report(Loaded(sum(1 << index for index in self._work.loaded), too_large))
            case Begin():
                self._report(Begun(job, self._work.loaded_reads(job.clock, job.bundles).by_partition))
            case Compute():
                assert delivery is not None
                if not job.cursor.is_aborted:
                    reads = self._work.loaded_reads(job.clock, job.bundles)
                    if delivery.is_whole:
                        inputs = self._work.assemble(reads, delivery.all(), apart=job.is_help)
                    else:
                        inputs = self._work.assemble_arriving(reads, delivery.take)
                    for bundle in job.bundles:
                        self._compute(job, inputs, delivery, bundle)
                self._over(job)

    def _load(self, job: LoadSlices) -> str | None:
        return load_ahead(self._ahead, partial(self._work.load, members(job.slices)), job, self._report)

    def _compute(self, job: Compute, inputs: Inputs, delivery: Delivery, bundle: Units) -> None:
        """Report each partition's contribution as soon as it is final.

        The last contribution reports that the inputs are free, so parameters of a later clock may overwrite them.
        """
        units = bundle.bit_count()
        is_streamed = self._work.layout.partitions > 1 and self._work.streams(bundle)
        if not is_streamed or (job.cursor.chunk and units > 1):
            self._sum(job, inputs, delivery, bundle)
            return
        if not job.cursor.claim(units):
            return
        started_s = time.monotonic()
        left = self._work.layout.partitions

        def report(partition: int, contribution: Contribution) -> None:
            nonlocal left, started_s
            waited_s = delivery.settled()
            started_s += waited_s
            left -= 1
            if not left:
                self._keep_pace(units, started_s)
                self._over_with(job, bundle)
            took_s = time.monotonic() - started_s
            found = ((partition, contribution),)
            needed_s = delivery.needed_s()
            self._report(Computed(job.timeline, job.clock, bundle, found, took_s, waited_s, needed_s))

        self._work.stream(inputs, bundle, report)

    def _sum(self, job: Compute, inputs: Inputs, delivery: Delivery, bundle: Units) -> None:
        """Compute a bundle, or as many of its units as the cursor leaves."""
        started_s = since_s = time.monotonic()
        helped_s = 0.0  # has seconds of its own

        def done(units: int) -> None:
            """A chunk is computed: pause, report the mark, and help before the next one."""
            nonlocal since_s, helped_s
            self._keep_pace(units, since_s)
            if job.cursor.passes():
                self._report(MarkPassed(job.timeline, job.clock))
            if not job.is_help:
                helped_s += self._give_help()
            since_s = time.monotonic()

        if job.cursor.chunk:
            sums = self._work.sums(inputs, bundle, job.cursor, done)
        else:
            sums = self._work.sums(inputs, bundle, job.cursor)
        if not sums:
            return
        waited_s = delivery.settled()
        if not job.cursor.chunk:
            self._keep_pace(bundle.bit_count(), started_s + waited_s)
        self._over_with(job, bundle)
        took_s = time.monotonic() - started_s - waited_s - helped_s
        for units, total in sums:
            contributions = tuple(enumerate(self._work.split(total)))
            needed_s = delivery.needed_s()
            self._report(Computed(job.timeline, job.clock, units, contributions, took_s, waited_s, needed_s))
            took_s = waited_s = 0.0  # with the first: sums of one bundle add up

    def _over_with(self, job: Compute, bundle: Units) -> None:
        if bundle is job.bundles[-1]:
            self._over(job)

    def _keep_pace(self, units: int, started_s: float) -> float:
        """Pause before a result is reported, if this machine stands for a slower one; returns the seconds. units: 0
        where it is no whole bundle."""
        now_s = time.monotonic()
        if (pause_s := self.pace.computed(units, now_s - started_s, now_s)) <= 0:
            return 0.0
        time.sleep(pause_s)
        paused_s = time.monotonic() - now_s
        self.pace.paused(paused_s)
        return paused_s
