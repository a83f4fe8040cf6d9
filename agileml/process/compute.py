"""The compute thread of a machine: loads items and runs the user's code, so that the server thread never waits."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext

from agileml.core.compute.cursor import Cursor
from agileml.core.compute.pace import Pace
from agileml.core.compute.threads import limited_threads
from agileml.core.compute.unit_computer import Inputs, Reads, UnitComputer
from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.commands import Begin, Begun, Compute, Computed, Loaded, LoadSlices, NodeEvent
from agileml.core.protocol.messages import Failure
from agileml.process.steady_clock import wall_s
from agileml.process.user_failures import ComputeJob, failure_while, told, warm_up
from straggler.coverage import Units, members


class ComputeJobs(ABC):
    """Takes jobs in one thread and carries them out, in order, in another."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[ComputeJob | Callable[[], None] | None] = queue.SimpleQueue()
        self._asked = self._done = 0  # computations
        self._doing: ComputeJob | None = None
        # Called after each job with its start and end, for a profile.
        self.on_done: Callable[[ComputeJob, float, float], None] | None = None

    def ask(self, job: ComputeJob) -> None:
        """Queue a job."""
        self._asked += isinstance(job, Compute)
        self._jobs.put(job)

    @property
    def is_at_work(self) -> bool:
        """True while a queued computation may still read its inputs. Only the thread that calls `ask` may use it."""
        return self._asked != self._done

    def _over(self, cursor: Cursor) -> None:
        """A computation does not read its inputs any more."""
        if not cursor.is_over:
            cursor.is_over = True
            self._done += 1

    @abstractmethod
    def _do(self, job: ComputeJob) -> None:
        """Carry out a job and report its result."""

    def _next(self) -> bool:
        """Do the next job, or call what was queued in its place; False at the end.

        A function of its own, so that the job's arrays are freed before the next wait.
        """
        job = self._jobs.get()
        if callable(job):
            job()
        elif job is not None:
            started_s = wall_s() if self.on_done is not None else 0.0
            self._doing = job
            self._do(job)
            self._doing = None
            if self.on_done is not None:
                self.on_done(job, started_s, wall_s())
        return job is not None


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
        super().__init__()
        self._work = work
        self._report = report
        self._load_kernels = load_kernels
        self._pace = pace or Pace()
        self._reads: tuple[tuple[int, tuple[Units, ...]], Reads] | None = None
        self._threads = 1 if work.deterministic else threads
        self._own_speed = self._pace.speed
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def slow_down(self, factor: float, seconds: float) -> None:
        """A planned fault: for `seconds` from now on, every unit takes `factor` times as long."""
        self._pace.slow_down(factor, time.monotonic() + seconds)

    def change_speed(self, speed: float) -> None:
        """A planned change: from now on this machine has `speed` times its own speed."""
        self._pace.speed = speed * self._own_speed

    def stop(self) -> None:
        """End the thread once it is idle, without waiting for the unit in progress."""
        self._jobs.put(None)

    def _run(self) -> None:
        with limited_threads(self._threads) if self._threads else nullcontext():
            try:
                self._load_kernels()
                warm_up(self._work.application)
                while self._next():
                    pass
            except BaseException as error:  # also SystemExit: this thread must not end unreported
                self._report(failure_while(self._doing, *told(error)))

    def _do(self, job: ComputeJob) -> None:
        match job:
            case LoadSlices():
                self._work.load(members(job.slices))
                self._report(Loaded(sum(1 << index for index in self._work.loaded)))
            case Begin():
                self._report(Begun(job, self._read(job.clock, job.bundles).by_partition))
            case Compute():
                if not job.cursor.is_aborted:
                    inputs = self._work.assemble(self._read(job.clock, job.bundles), job.parts)
                    for bundle in job.bundles:
                        self._compute(job, inputs, bundle, is_last=bundle is job.bundles[-1])
                self._over(job.cursor)

    def _compute(self, job: Compute, inputs: Inputs, bundle: Units, *, is_last: bool) -> None:
        """Report each partition's contribution as soon as it is final.

        The last contribution reports that the inputs are free, so the parameters of the next clock may overwrite them.
        """
        units = bundle.bit_count()
        is_streamed = self._work.layout.partitions > 1 and self._work.streams(bundle)
        if not is_streamed or (job.cursor.chunk and units > 1):
            self._sum(job, inputs, bundle, is_last=is_last)
            return
        if not job.cursor.claim(units):
            return
        started_s = time.monotonic()
        left = self._work.layout.partitions

        def report(partition: int, contribution: Contribution) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._keep_pace(units, started_s)
            if is_last and not left:
                self._over(job.cursor)
            took_s = time.monotonic() - started_s
            self._report(Computed(job.timeline, job.clock, bundle, ((partition, contribution),), took_s))

        self._work.stream(inputs, bundle, report)

    def _sum(self, job: Compute, inputs: Inputs, bundle: Units, *, is_last: bool) -> None:
        """Compute a bundle, or as many of its units as the cursor leaves."""
        started_s = time.monotonic()
        sums = self._work.sums(inputs, bundle, job.cursor)
        if not sums:
            return
        self._keep_pace(sum(units.bit_count() for units, _ in sums), started_s)
        if is_last:
            self._over(job.cursor)
        took_s = time.monotonic() - started_s
        for units, total in sums:
            contributions = tuple(enumerate(self._work.split(total)))
            self._report(Computed(job.timeline, job.clock, units, contributions, took_s))
            took_s = 0.0  # with the first: sums of one bundle add up

    def _keep_pace(self, units: int, started_s: float) -> None:
        """Pause before the bundle is reported whole, if this machine stands for a slower one."""
        now_s = time.monotonic()
        if (pause_s := self._pace.computed(units, now_s - started_s, now_s)) > 0:
            time.sleep(pause_s)
            self._pace.paused(time.monotonic() - now_s)

    def _read(self, clock: int, bundles: tuple[Units, ...]) -> Reads:
        """The rows that the bundles read. The last answer is cached, because the next computation needs it again."""
        key = (clock, bundles)
        if self._reads is None or self._reads[0] != key:
            parts = self._work.parts
            self._work.load(sorted({unit // parts for bundle in bundles for unit in members(bundle)}))
            self._reads = (key, self._work.reads(clock, bundles))
        return self._reads[1]
