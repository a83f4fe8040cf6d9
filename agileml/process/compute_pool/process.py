"""A compute process: builds the application, loads its share of the slices, and computes sums into shared memory.

    python -m agileml.process.compute_pool.process PIPE LIFE TABLES HELP RESULTS

The arguments are file descriptors: the pipe to the machine, one end of a pipe that closes when the machine's process
ends, and the shared memory of the parameters, of those of help, and of this process's results.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from agileml.application import Application
from agileml.core.compute.pace import Pace
from agileml.core.compute.threads import limited_threads, set_threads
from agileml.core.compute.unit_computer import Inputs, Reads, UnitComputer
from agileml.process.compute_pool.memory import Results, SharedTables
from agileml.process.compute_pool.orders import (
    Answer,
    ComputeSums,
    Failed,
    LoadItems,
    Order,
    ReadRows,
    Ready,
    RowsRead,
    SetPace,
    SetThreads,
    Start,
    SumDone,
)
from agileml.process.user_failures import problem_of, warm_up
from agileml.process.warm_up import load_kernels
from straggler.coverage import union


class ComputeProcess:
    """Answers the orders of its machine."""

    def __init__(
        self, start: Start, application: Application, tables_fds: tuple[int, int], results_fd: int
    ) -> None:
        job = start.spec.job(application)
        self._work = UnitComputer(application, job.layout, job.parts, deterministic=job.deterministic)
        self._tables, self._help_tables = (SharedTables(job.layout, fd) for fd in tables_fds)
        self._results = Results(results_fd)
        self._speed = start.speed
        self._pace = Pace(start.spec.pace_s, start.speed)
        application.started()  # only the machine itself needs initial values
        load_kernels(job)
        # Where the bits must not depend on their number, the application has those that it says itself.
        if (threads := start.splits[0].threads) > 1 and not job.deterministic:
            application.use_threads(threads)
        warm_up(application)

    def answers(self, order: Order) -> list[Answer]:
        """Carry out an order; sums are sent by `compute`."""
        match order:
            case LoadItems():
                self._work.load(order.slices)
                return [Ready()]
            case ReadRows():
                self._results.clear()
                rows = self._work.loaded_reads(order.clock, (order.units,)).rows
                sparse = [table.name for table in self._work.layout.tables if table.sparse]
                return [RowsRead(tuple(self._results.write(rows[name]) for name in sparse))]
            case SetPace():
                if order.speed is not None:
                    self._pace.speed = order.speed * self._speed
                else:
                    self._pace.slow_down(order.factor, order.until_s)
                return []
            case SetThreads():
                set_threads(order.count)
                self._work.application.use_threads(order.count)
                return []
            case _:
                raise AssertionError(order)

    def compute(self, order: ComputeSums, pipe: Connection) -> None:
        """Send the sum of each bundle as soon as it is there."""
        mine = self._work.loaded_reads(order.clock, (union(order.bundles),))
        shared = self._help_tables if order.is_help else self._tables
        tables, rows = shared.tables(order.counts)
        inputs = Inputs(Reads(order.clock, mine.by_unit, rows, ()), tables, is_shared=True)
        self._results.clear()
        for bundle in order.bundles:
            started_s = time.monotonic()
            total = self._work.total(inputs, bundle)
            now_s = time.monotonic()
            if (pause_s := self._pace.computed(bundle.bit_count(), now_s - started_s, now_s)) > 0:
                time.sleep(pause_s)
                self._pace.paused(time.monotonic() - now_s)
            pipe.send(SumDone(bundle, self._results.write_sum(total)))


def serve(pipe: Connection, tables_fds: tuple[int, int], results_fd: int) -> None:
    """Answer the machine's orders until it closes the pipe, or user code fails."""
    try:
        start = pipe.recv()
        assert isinstance(start, Start), start
        with limited_threads(start.splits[0].threads):
            process = ComputeProcess(start, start.spec.build(), tables_fds, results_fd)
            pipe.send(Ready())
            while True:
                order = pipe.recv()
                if isinstance(order, ComputeSums):
                    process.compute(order, pipe)
                else:
                    for answer in process.answers(order):
                        pipe.send(answer)
    except (EOFError, BrokenPipeError):
        return
    except BaseException as error:  # also SystemExit of user code
        pipe.send(Failed(*problem_of(error)))
        with suppress(EOFError):
            while pipe.recv():  # the machine ends this process when it has reported the failure
                pass


def end_with(life_fd: int) -> None:
    """End this process at once when the machine's process closes its end, or dies."""

    def watch() -> None:
        os.read(life_fd, 1)
        os._exit(1)

    threading.Thread(target=watch, name="machine-watch", daemon=True).start()


def main() -> None:
    pipe_fd, life_fd, tables_fd, help_fd, results_fd = map(int, sys.argv[1:])
    end_with(life_fd)
    serve(Connection(pipe_fd), (tables_fd, help_fd), results_fd)


if __name__ == "__main__":
    main()
