"""Training nets beside the job, at the lowest priority (Chen et al., 4.3).

    python -m straggler.speed.background PIPE

is the process that trains: it answers what it reads from the pipe with this file descriptor, and ends when the pipe is
closed, or when the process that began it dies.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import Future
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from threadpoolctl import threadpool_limits

from straggler.speed.narx import Floats, Net, train

LOWEST = 19  # of the priorities
Asked = tuple[Floats, Floats, Floats, float]  # the arguments of `train`


class Background:
    """A `Trainer` with a process of its own: a thread at low priority would hold the interpreter's lock.

    The process starts with the first training, so a short job has none. Nets are trained in turn, first come, first
    served. Use it as a context manager, or `close` it.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Future[Net], Asked] | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="net-training", daemon=True)
        self._thread.start()

    def submit(self, starts: Floats, inputs: Floats, changes: Floats, hold: float) -> Future[Net]:
        """See `Trainer`. The result of a process that ended before it was done is an EOFError."""
        future: Future[Net] = Future()
        self._asked.put((future, (starts.copy(), inputs, changes, hold)))
        return future

    def close(self) -> None:
        """Drop the nets that are not trained yet, and end the process."""
        self._is_closed.set()
        self._asked.put(None)
        if (process := self._process) is not None:
            process.kill()
        self._thread.join()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process that trains, once there is one."""
        return self._process.pid if self._process is not None else None

    def _run(self) -> None:
        pipe: Connection | None = None
        while (asked := self._asked.get()) is not None and not self._is_closed.is_set():
            future, arguments = asked
            try:
                pipe = pipe or self._begin()
                pipe.send(arguments)
                future.set_result(pipe.recv())
            except (EOFError, OSError) as error:  # the process is gone; the next training gets a new one
                future.set_exception(error)
                pipe = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _begin(self) -> Connection:
        ours, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "straggler.speed.background", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            stdin=subprocess.DEVNULL,
        )
        os.setpriority(os.PRIO_PROCESS, self._process.pid, LOWEST)
        theirs.close()
        if self._is_closed.is_set():  # by another thread, before there was a process to end
            self._process.kill()
        return ours


def serve(pipe: Connection) -> None:
    """Train what comes, until the other side closes the pipe."""
    with threadpool_limits(limits=1):
        while True:
            try:
                pipe.send(train(*pipe.recv()))
            except (EOFError, BrokenPipeError):
                return


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
