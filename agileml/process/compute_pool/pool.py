"""The compute processes of one machine, which stand in for its compute thread.

A job's units are divided between the processes. Each reads the assembled parameters in shared memory, where rendezvous
receives them, and writes its sums to shared memory. The machine adds them up along the tree of `fold`, so one
contribution for each bundle leaves the machine, with the bits of one process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

from agileml.application import Array
from agileml.config.hardware import ItemsAhead
from agileml.core.compute.cursor import Cursor
from agileml.core.compute.unit_computer import Reads, UnitComputer
from agileml.core.parameters.fold import Fold
from agileml.core.protocol.commands import (
    Begin,
    Begun,
    Compute,
    Computed,
    CoresSplit,
    Loaded,
    LoadSlices,
    MarkPassed,
    NodeEvent,
)
from agileml.core.protocol.messages import Failure
from agileml.process.compute import ComputeJobs, Delivery, load_ahead
from agileml.process.compute_pool.memory import Results, SharedTables, kept
from agileml.process.compute_pool.orders import (
    Answer,
    ComputeSums,
    Failed,
    LoadItems,
    Order,
    ReadRows,
    RowsRead,
    SetPace,
    SetThreads,
    Start,
    SumDone,
)
from agileml.process.compute_pool.shares import shares
from agileml.process.compute_pool.split_choice import SplitChoice
from agileml.process.user_failures import ComputeJob, failure_while, problem_of
from straggler.coverage import Units, aligned_subtrees, members, union

END_S = 10.0  # that a process takes at most to end, once its pipe is broken
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass
class _Process:
    """A compute process. `end_fd` can be read once it has ended; closing `life_fd` ends it. `loaded`: slices."""

    popen: subprocess.Popen[bytes]
    end_fd: int
    pipe: Connection
    life_fd: int
    results: Results
    loaded: set[int] = field(default_factory=set)
    is_dismissed: bool = False  # the machine ends it


class ComputePool(ComputeJobs):
    """As `ComputeThread`, with several processes: those of the first of `start.splits`, later those of the fastest.

    When a process ends by itself, a thread of the pool calls `died` with a sentence.
    """

    def __init__(
        self,
        start: Start,
        work: UnitComputer,
        report: Callable[[NodeEvent | Failure], None],
        load_kernels: Callable[[], None],
        died: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._start = start
        self._work = work
        self._report = report
        self._load_kernels = load_kernels
        self._died = died
        self._tables_fd = os.memfd_create("proteus-parameters")
        self.tables = SharedTables(work.layout, self._tables_fd)
        self._help_fd = os.memfd_create("proteus-help-parameters")  # takes memory as it is written
        self._help_tables = SharedTables(work.layout, self._help_fd)
        self._processes: list[_Process] = []
        self._choice = SplitChoice(start.splits) if len(start.splits) > 1 else None
        self._using = start.splits[0].workers  # how many processes compute: the first ones
        self._ahead = ItemsAhead(lambda: [process.popen.pid for process in self._processes])
        self._reads: tuple[tuple[int, tuple[Units, ...]], Reads] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def slow_down(self, factor: float, seconds: float) -> None:
        """A planned fault, from the next job on."""
        pace = SetPace(factor=factor, until_s=time.monotonic() + seconds)
        self._jobs.put(partial(self._send_all, pace))

    def change_speed(self, speed: float) -> None:
        """A planned change, from the next job on."""
        self._jobs.put(partial(self._send_all, SetPace(speed=speed)))

    def schedstats(self) -> list[Path]:
        """Where the kernel says how long each process ran and waited for a core."""
        return [Path(f"/proc/{process.popen.pid}/schedstat") for process in list(self._processes)]

    def stop(self) -> None:
        """End the processes at once, and the thread."""
        self._stopping.set()
        for process in list(self._processes):
            process.popen.kill()
        self._delivery.abort()
        self._jobs.put(None)

    # -- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_watched = False
        try:
            for _ in range(self._start.splits[0].workers):
                self._processes.append(self._begin_process())
            threading.Thread(target=self._watch, name="compute-watch", daemon=True).start()
            is_watched = True
            for process in self._processes:
                _send_start(process.pipe, self._start)
            self._load_kernels()
            list(self._answers(dict.fromkeys(range(len(self._processes)), 1)))  # each is ready
            while self._next() and not self._stopping.is_set():
                pass
        except BaseException as error:  # this thread must not end unreported
            if is_watched and isinstance(error, EOFError | OSError) and self._has_ended():
                return  # the watch says which process ended, and ends the others
            self._stopping.set()
            failed = (error.problem, error.trace) if isinstance(error, _UserCodeError) else problem_of(error)
            self._report(failure_while(self._doing, *failed))
        self._end_processes()

    def _has_ended(self) -> bool:
        """True once a process has ended. The kernel closes its pipe a moment before."""
        return bool(wait([process.end_fd for process in self._processes], END_S))

    def _end_processes(self) -> None:
        for process in self._processes:
            process.popen.kill()
            process.popen.wait()

    def _begin_process(self) -> _Process:
        ours, theirs = Pipe()
        life_read, life_write = os.pipe()
        results_fd = os.memfd_create("proteus-results")
        passed = (theirs.fileno(), life_read, self._tables_fd, self._help_fd, results_fd)
        popen = subprocess.Popen(
            [sys.executable, "-m", "agileml.process.compute_pool.process", *map(str, passed)],
            pass_fds=passed,
            env=self._environment(len(self._processes)),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        os.close(life_read)
        return _Process(popen, os.pidfd_open(popen.pid), ours, life_write, Results(results_fd))

    def _environment(self, index: int) -> dict[str, str]:
        """This process's, with its modules, the threads of one compute process, and the GPU of its own."""
        found = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        found |= dict.fromkeys(THREAD_VARIABLES, str(self._start.most_threads))
        gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        if len(gpus) >= self._start.splits[0].workers:
            found["CUDA_VISIBLE_DEVICES"] = gpus[index]
        return found

    def _watch(self) -> None:
        """Wait for the end of any process: the machine does not live on without it."""
        count = len(self._processes)
        watched = {process.end_fd: (index, process) for index, process in enumerate(self._processes)}
        while True:
            ended = wait(list(watched))[0]
            assert isinstance(ended, int)
            index, process = watched.pop(ended)
            code = process.popen.wait()
            if not process.is_dismissed:
                break
            os.close(ended)
        if not self._stopping.is_set():
            self._died(f"compute process {index} of {count} ended by itself (exit code {code})")
        self._end_processes()

    def _do(self, job: ComputeJob, delivery: Delivery | None) -> None:
        match job:
            case LoadSlices():
                too_large = load_ahead(self._ahead, partial(self._load, job.slices), job, self._report)
                self._report(Loaded(job.slices, too_large))
            case Begin():
                self._report(Begun(job, self._rows(job.clock, job.bundles).by_partition))
            case Compute() if job.cursor.chunk:
                assert delivery is not None
                self._compute_by_chunks(job, delivery)
                self._over(job)
            case Compute():
                assert delivery is not None
                if job.cursor.claim(job.cursor.units):
                    self._compute(job, delivery)
                self._over(job)

    def _load(self, slices: Units) -> None:
        """Have each process load its share of the slices that none has."""
        used = self._processes[: self._using]
        here = union(1 << index for process in used for index in process.loaded)
        dealt = shares(slices & ~here, 1, [set() for _ in used])
        for process, mine in zip(used, dealt, strict=True):
            process.loaded |= set(members(mine))
            process.pipe.send(LoadItems(tuple(members(mine))))
        for _ in self._answers(dict.fromkeys(range(len(used)), 1)):
            pass

    def _dealt(self, bundles: tuple[Units, ...]) -> list[Units]:
        """The units of each process."""
        used = self._processes[: self._using]
        dealt = shares(union(bundles), self._work.parts, [process.loaded for process in used])
        for process, mine in zip(used, dealt, strict=True):
            process.loaded |= {unit // self._work.parts for unit in members(mine)}  # it loads those it lacks
        return dealt

    def _rows(self, clock: int, bundles: tuple[Units, ...]) -> Reads:
        """The rows that the bundles read; cached, because the next computation needs them again."""
        if self._reads is not None and self._reads[0] == (clock, bundles):
            return self._reads[1]
        sparse = [table for table in self._work.layout.tables if table.sparse]
        rows: dict[str, list[Array]] = {table.name: [] for table in sparse}
        if sparse:
            expected = {}
            for index, mine in enumerate(self._dealt(bundles)):
                if mine:
                    self._processes[index].pipe.send(ReadRows(clock, mine))
                    expected[index] = 1
            for index, answer in self._answers(expected):
                assert isinstance(answer, RowsRead), answer
                for table, place in zip(sparse, answer.rows, strict=True):
                    rows[table.name].append(self._processes[index].results.read(place))
        together = self._work.union_of(rows)
        reads = Reads(clock, {}, together, tuple(self._work.layout.rows_by_partition(together)))
        self._reads = ((clock, bundles), reads)
        return reads

    def _compute(self, job: Compute, delivery: Delivery) -> None:
        """Report each bundle once its last sum is there. After the last bundle the parameters may be overwritten."""
        reads = self._rows(job.clock, job.bundles)
        self.tables.fill(reads.rows, delivery.all())
        counts = tuple(len(reads.rows[t.name]) if t.sparse else 0 for t in self._work.layout.tables)
        bundle_of: dict[Units, Units] = {}
        expected = {}
        for index, mine in enumerate(self._dealt(job.bundles)):
            pieces = [
                piece for bundle in job.bundles if mine & bundle for piece in self._pieces(mine & bundle)
            ]
            bundle_of |= {piece: next(b for b in job.bundles if b & piece) for piece in pieces}
            if pieces:
                self._processes[index].pipe.send(ComputeSums(job.clock, tuple(pieces), counts))
                expected[index] = len(pieces)
        began_s = since_s = time.monotonic()
        folds = {bundle: Fold(self._work.deterministic) for bundle in job.bundles}
        left = len(folds)
        for index, answer in self._answers(expected):
            assert isinstance(answer, SumDone), answer
            bundle = bundle_of[answer.bundle]
            folds[bundle].add(answer.bundle, self._processes[index].results.read_sum(answer.total))
            if folds[bundle].counted == bundle:
                left -= 1
                parts = tuple(enumerate(self._work.split(kept(folds[bundle].total()))))
                if not left:
                    self._over(job)
                took_s, since_s = time.monotonic() - since_s, time.monotonic()
                waited_s = delivery.settled()
                self._report(Computed(job.timeline, job.clock, bundle, parts, took_s, waited_s))
        self._choose_split(job, union(job.bundles).bit_count(), time.monotonic() - began_s)

    def _choose_split(self, job: Compute, units: int, seconds: float) -> None:
        """Learn from a job's time: go on with the next split to try, or with the chosen one."""
        if self._choice is None or job.is_help:
            return
        before = self._choice.split
        found = self._choice.computed(units, seconds)
        if (split := self._choice.split) != before:
            self._using = split.workers
            for process in self._processes[: split.workers]:
                process.pipe.send(SetThreads(split.threads))
        if found is not None:
            self._choice = None
            self._dismiss(split.workers)
            self._report(CoresSplit(job.clock + 1, split.workers, split.threads, found.reason))

    def _dismiss(self, stay: int) -> None:
        """End the processes beyond the first ones."""
        going, self._processes = self._processes[stay:], self._processes[:stay]
        for process in going:
            process.is_dismissed = True
            process.popen.kill()  # the watch waits for its end
            process.pipe.close()
            os.close(process.life_fd)
            process.results.close()

    def _compute_by_chunks(self, job: Compute, delivery: Delivery) -> None:
        """As `_compute`, bundle by bundle, in rounds of one chunk for each process; queued help is computed between
        rounds."""
        reads = self._rows(job.clock, job.bundles)
        (self._help_tables if job.is_help else self.tables).fill(reads.rows, delivery.all())
        counts = tuple(len(reads.rows[t.name]) if t.sparse else 0 for t in self._work.layout.tables)
        spent_s, computed = 0.0, 0
        for bundle in job.bundles:
            numbers, at, since_s, helped_s = list(members(bundle)), 0, time.monotonic(), 0.0
            fold = Fold(self._work.deterministic)
            while count := self._claim(job.cursor, len(numbers) - at):
                self._add_round(fold, job, union(1 << n for n in numbers[at : at + count]), counts)
                at += count
                computed += count
                if job.cursor.passes():
                    self._report(MarkPassed(job.timeline, job.clock))
                if not job.is_help:
                    helped_s += self._give_help()
            if job.cursor.is_aborted:
                return
            took_s = time.monotonic() - since_s - helped_s
            spent_s += took_s
            for units, total in fold.sums():
                parts = tuple(enumerate(self._work.split(total)))
                self._report(Computed(job.timeline, job.clock, units, parts, took_s))
                took_s = 0.0  # with the first: sums of one bundle add up
        if computed:
            self._choose_split(job, computed, spent_s)

    def _claim(self, cursor: Cursor, most: int) -> int:
        """A chunk for each process."""
        count = 0
        for _ in self._processes[: self._using]:
            count += cursor.claim(most - count)
        return count

    def _add_round(self, fold: Fold, job: Compute, units: Units, counts: tuple[int, ...]) -> None:
        """Have the processes compute some units, and add up their sums."""
        expected = {}
        for index, mine in enumerate(self._dealt((units,))):
            if mine:
                pieces = tuple(self._pieces(mine))
                order = ComputeSums(job.clock, pieces, counts, job.is_help)
                self._processes[index].pipe.send(order)
                expected[index] = len(pieces)
        for index, answer in self._answers(expected):
            assert isinstance(answer, SumDone), answer
            fold.add(answer.bundle, kept(self._processes[index].results.read_sum(answer.total)))

    def _pieces(self, units: Units) -> list[Units]:
        """The sums that a process makes of its units of a bundle: aligned subtrees where the order of adding counts."""
        return aligned_subtrees(units) if self._work.deterministic else [units]

    def _send_all(self, order: Order) -> None:
        for process in self._processes:
            process.pipe.send(order)

    def _answers(self, expected: dict[int, int]) -> Iterator[tuple[int, Answer]]:
        """The answers of the processes as they come: `expected[i]` of process i. Raises _UserCodeError, EOFError."""
        left = dict(expected)
        index_of = {self._processes[index].pipe: index for index in left}
        while left:
            for pipe in wait([self._processes[index].pipe for index in left]):
                assert isinstance(pipe, Connection)
                index, answer = index_of[pipe], pipe.recv()
                if isinstance(answer, Failed):
                    raise _UserCodeError(answer.problem, answer.trace)
                left[index] -= 1
                if not left[index]:
                    del left[index]
                yield index, answer


@dataclass(eq=False)
class _UserCodeError(Exception):
    """The application or its data failed in a compute process."""

    problem: str
    trace: str


def _send_start(pipe: Connection, start: Start) -> None:
    from ray import cloudpickle  # it also takes classes of the user's main module

    pipe.send_bytes(cloudpickle.dumps(start))
